// SPDX-License-Identifier: Apache-2.0

// Package wiretest holds exchanges of tests against the OpenAPI document of the wire.
//
// It owns the question "is this request, answer, line or event one of the document": routes, query
// names, schemas, statuses, media types, codes with their sentence, payloads of signed statements.
// A request that the document does not allow must be refused; an answer must always be allowed.
// Schemas are checked with kin-openapi by JSON Schema 2020-12.
//
// It never alters an exchange, never verifies a signature, and is for tests alone: nothing that
// runs in production imports it.
package wiretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Contract is the parsed document. It is safe for concurrent use.
type Contract struct {
	Doc        *openapi3.T
	operations []operation
}

// operation is one method of one path.
type operation struct {
	method, path string
	parts        []string // of path
	item         *openapi3.PathItem
	op           *openapi3.Operation
	codes        map[api.Code]bool
}

// load parses the embedded document once: it takes some 100 ms.
var load = sync.OnceValues(func() (*Contract, error) { return Parse(api.OpenAPI()) })

// Load returns the contract of package api.
func Load() (*Contract, error) { return load() }

// Parse reads and validates a document, examples included.
func Parse(text []byte) (*Contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, fmt.Errorf("read OpenAPI document: %w", err)
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		return nil, fmt.Errorf("validate OpenAPI document: %w", err)
	}
	c := &Contract{Doc: doc}
	for name, ref := range doc.Components.Schemas { // kin-openapi looks at the older member "example" alone
		for i, example := range ref.Value.Examples {
			text, err := strictjson.Marshal(example)
			if err == nil {
				err = c.Check(name, text)
			}
			if err != nil && ref.Value.Extensions["x-payload"] == nil {
				return nil, fmt.Errorf("example %d of %s: %w", i, name, err)
			}
		}
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			o := operation{method: method, path: path, parts: strings.Split(path, "/"), item: item, op: op, codes: map[api.Code]bool{}}
			names, ok := op.Extensions["x-codes"].([]any)
			if !ok {
				return nil, fmt.Errorf("%s has no x-codes", op.OperationID)
			}
			for _, n := range names {
				o.codes[api.Code(fmt.Sprintf("REMOTE_WORKER_%v", n))] = true
			}
			c.operations = append(c.operations, o)
		}
	}
	return c, nil
}

// Operation says which operation a request is, or nil, and the values in its path. Targets are
// compared as the worker does: nothing is percent-decoded.
func (c *Contract) Operation(method, target string) (*openapi3.Operation, map[string]string) {
	o, params := c.match(method, target)
	if o == nil {
		return nil, nil
	}
	return o.op, params
}

func (c *Contract) match(method, target string) (*operation, map[string]string) {
	path, _, _ := strings.Cut(target, "?")
	have := strings.Split(path, "/")
	for i, o := range c.operations {
		if o.method != method || len(o.parts) != len(have) {
			continue
		}
		params, same := map[string]string{}, true
		for j, w := range o.parts {
			if strings.HasPrefix(w, "{") {
				params[strings.Trim(w, "{}")] = have[j]
			} else if w != have[j] {
				same = false
			}
		}
		if same {
			return &c.operations[i], params
		}
	}
	return nil, nil
}

func (c *Contract) byID(id string) *operation {
	for i, o := range c.operations {
		if o.op.OperationID == id {
			return &c.operations[i]
		}
	}
	return nil
}

// Check holds one JSON text against a schema of the document.
func (c *Contract) Check(schema string, text []byte) error {
	ref := c.Doc.Components.Schemas[schema]
	if ref == nil || ref.Value == nil {
		return fmt.Errorf("the document has no schema %q", schema)
	}
	return c.against(ref.Value, schema, text)
}

func (c *Contract) against(schema *openapi3.Schema, name string, text []byte) error {
	var v any
	if err := strictjson.Unmarshal(text, &v, strictjson.Limits{Bytes: api.MaxAnswerBytes, StringBytes: api.MaxAnswerString}); err != nil {
		return err
	}
	// Without this option kin-openapi takes a 3.1 schema for one of 3.0 and passes over what it
	// does not know.
	if err := schema.VisitJSON(v, openapi3.EnableJSONSchema2020(), openapi3.MultiErrors(), openapi3.SetSchemaErrorMessageCustomizer(brief)); err != nil {
		return fmt.Errorf("not a %s: %w", name, err)
	}
	return c.payloads(schema, v)
}

// brief says where and why, without the schema and the value.
func brief(e *openapi3.SchemaError) string {
	return "/" + strings.Join(e.JSONPointer(), "/") + ": " + e.Reason
}

// payloads checks the signed statements that members of v hold.
func (c *Contract) payloads(schema *openapi3.Schema, v any) error {
	members, _ := v.(map[string]any)
	var bad []error
	for name, ref := range schema.Properties {
		payload, _ := extension(ref, "x-payload").(string)
		token, present := members[name].(string)
		if payload == "" || !present {
			continue
		}
		text, err := segment(token, 1)
		if err == nil {
			err = c.Check(payload, text)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(bad...)
}

// extension finds x-… beside a $ref, or in what it names.
func extension(ref *openapi3.SchemaRef, name string) any {
	for _, from := range []map[string]any{ref.Extensions, ref.Value.Extensions} {
		v := from[name]
		if raw, ok := v.(json.RawMessage); ok && json.Unmarshal(raw, &v) != nil {
			return nil
		}
		if v != nil {
			return v
		}
	}
	return nil
}

// failure checks an error body that came with status, and returns its code.
func (c *Contract) failure(o *operation, status int, text []byte) (api.Code, error) {
	e := api.DecodeError(status, text)
	if e.Code == api.ResponseInvalid {
		return "", e
	}
	if o == nil {
		if e.Code.Status() >= http.StatusInternalServerError && e.Code != api.Unavailable {
			return e.Code, fmt.Errorf("%s for a request that is not in the document", e.Code)
		}
		return e.Code, nil
	}
	if !o.codes[e.Code] {
		return e.Code, fmt.Errorf("%s does not declare %s", o.op.OperationID, e.Code)
	}
	return e.Code, nil
}
