// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

// tree is the document as plain values, so that the tests see every member.
type tree map[string]any

func document(t *testing.T) tree {
	t.Helper()
	var out tree
	if err := yaml.Unmarshal(api.OpenAPI(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// at follows a path of names; nil if there is nothing. yaml gives nested objects the type of the
// outermost.
func (d tree) at(path string) any {
	var v any = d
	for name := range strings.FieldsSeq(path) {
		inner, _ := v.(tree)
		v = inner[name]
	}
	return v
}

func (d tree) schema(name string) tree {
	s, _ := d.at("components schemas " + name).(tree)
	return s
}

func (d tree) strings(path string) []string {
	var out []string
	list, _ := d.at(path).([]any)
	for _, v := range list {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

// wire is every struct that crosses the wire, in the document under its own name.
func wire() map[string]reflect.Type {
	out := map[string]reflect.Type{
		"HealthClaims":    reflect.TypeOf(capability.Claims{Op: api.OpHealth}.Payload()),
		"WorkspaceClaims": reflect.TypeOf(capability.Claims{Op: api.OpCreate}.Payload()),
		"SandboxClaims":   reflect.TypeOf(capability.Claims{Op: api.OpExec}.Payload()),
	}
	for _, t := range []reflect.Type{
		reflect.TypeFor[api.Resources](), reflect.TypeFor[api.Expected](), reflect.TypeFor[api.CreateRequest](), reflect.TypeFor[api.CreateResponse](),
		reflect.TypeFor[api.Receipt](), reflect.TypeFor[api.SandboxState](), reflect.TypeFor[api.Usage](), reflect.TypeFor[api.ExecRequest](),
		reflect.TypeFor[api.ExecResult](), reflect.TypeFor[api.Truncated](), reflect.TypeFor[api.ExecEvent](), reflect.TypeFor[api.CancelResponse](),
		reflect.TypeFor[api.RenewResponse](), reflect.TypeFor[api.ChangeEvent](), reflect.TypeFor[api.CredentialRef](), reflect.TypeFor[api.CredentialField](),
		reflect.TypeFor[api.FSRequest](), reflect.TypeFor[api.FSEntry](), reflect.TypeFor[api.FSResponse](), reflect.TypeFor[api.WriteResponse](),
		reflect.TypeFor[api.Health](), reflect.TypeFor[api.HealthResponse](), reflect.TypeFor[api.Limits](), reflect.TypeFor[api.ErrorBody](), reflect.TypeFor[api.ErrorDetail](),
	} {
		out[t.Name()] = t
	}
	return out
}

// parsed reads a source file of this package.
func parsed(t *testing.T, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestEveryWireTypeIsListed reads the sources, so that a new type is found.
func TestEveryWireTypeIsListed(t *testing.T) {
	known := wire()
	for _, file := range []string{"types.go", "errors.go"} {
		ast.Inspect(parsed(t, file), func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, isStruct := spec.Type.(*ast.StructType)
			if isStruct && spec.Name.IsExported() && s.Fields.NumFields() > 0 && s.Fields.List[0].Tag != nil && known[spec.Name.Name] == nil {
				t.Errorf("%s of %s is not compared with the document", spec.Name.Name, file)
			}
			return true
		})
	}
	schemas, _ := document(t).at("components schemas").(tree)
	for name := range schemas {
		if s := document(t).schema(name); s["type"] == "object" && known[name] == nil {
			t.Errorf("schema %s has no Go type", name)
		}
	}
}

func TestSchemasEqualGoTypes(t *testing.T) {
	d := document(t)
	for name, typ := range wire() {
		for _, difference := range d.differences(name, typ) {
			t.Error(difference)
		}
	}
}

// The comparison must be able to fail.
func TestDriftOfATypeIsFound(t *testing.T) {
	d := document(t)
	for name, typ := range map[string]reflect.Type{
		"a new member": reflect.TypeFor[struct {
			Size   int64  `json:"size"`
			Digest string `json:"digest"`
			Mtime  int64  `json:"mtime"`
		}](),
		"a member that went": reflect.TypeFor[struct {
			Size int64 `json:"size"`
		}](),
		"another JSON type": reflect.TypeFor[struct {
			Size   string `json:"size"`
			Digest string `json:"digest"`
		}](),
		"no longer required": reflect.TypeFor[struct {
			Size   int64  `json:"size"`
			Digest string `json:"digest,omitempty"`
		}](),
		"bytes for a string": reflect.TypeFor[struct {
			Size   int64  `json:"size"`
			Digest []byte `json:"digest"`
		}](),
	} {
		if len(d.differences("WriteResponse", typ)) == 0 {
			t.Errorf("%s is not found", name)
		}
	}
}

// differences compares one schema with one struct.
func (d tree) differences(name string, typ reflect.Type) (out []string) {
	say := func(format string, args ...any) {
		out = append(out, name+": "+fmt.Sprintf(format, args...))
	}
	s := d.schema(name)
	if s == nil || s["type"] != "object" || s["additionalProperties"] != false {
		say("no schema of a closed object")
		return out
	}
	members, _ := s["properties"].(tree)
	var required []string
	for f := range typ.Fields() {
		tag, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		if option == "" {
			required = append(required, tag)
		}
		member, _ := members[tag].(tree)
		if member == nil {
			say("member %s is missing", tag)
			continue
		}
		for _, bad := range d.mismatch(member, f.Type) {
			say("member %s %s", tag, bad)
		}
		delete(members, tag)
	}
	for left := range members {
		say("member %s has no field", left)
	}
	var listed []string
	for _, v := range asList(s["required"]) {
		listed = append(listed, fmt.Sprint(v))
	}
	if slices.Sort(listed); !slices.Equal(listed, slices.Sorted(slices.Values(required))) {
		say("required are %v, the type has %v", listed, required)
	}
	return out
}

func asList(v any) []any { l, _ := v.([]any); return l }

// mismatch compares one member with a field's type. Every member has bounds.
func (d tree) mismatch(member tree, typ reflect.Type) (out []string) {
	ref := ""
	if r, ok := member["$ref"].(string); ok {
		ref = strings.TrimPrefix(r, "#/components/schemas/")
	}
	if ref != "" && d.schema(ref)["type"] != "object" { // a named string
		merged := maps.Clone(d.schema(ref))
		maps.Copy(merged, member)
		member, ref = merged, ""
	}
	if alternatives := asList(member["anyOf"]); len(alternatives) > 0 {
		for _, a := range alternatives {
			out = append(out, d.mismatch(a.(tree), typ)...)
		}
		return out
	}
	has := func(kind string, bounds ...string) {
		if member["type"] != kind {
			out = append(out, fmt.Sprintf("is of type %v, not %s", member["type"], kind))
		}
		for _, b := range bounds {
			if member[b] == nil && member["enum"] == nil && member["const"] == nil {
				out = append(out, "has no "+b)
			}
		}
	}
	switch {
	case typ.Kind() == reflect.Pointer:
		return d.mismatch(member, typ.Elem())
	case typ == reflect.TypeFor[[]byte]():
		if has("string", "maxLength", "pattern"); member["contentEncoding"] != "base64" {
			out = append(out, "is not in base64")
		}
	case typ.Kind() == reflect.Slice:
		has("array", "maxItems")
		item, _ := member["items"].(tree)
		out = append(out, d.mismatch(item, typ.Elem())...)
	case typ.Kind() == reflect.Struct:
		if ref != typ.Name() {
			out = append(out, fmt.Sprintf("refers to %q, not %s", ref, typ.Name()))
		}
	case typ.Kind() == reflect.String:
		has("string", "maxLength")
		if member["contentEncoding"] != nil {
			out = append(out, "is in base64")
		}
	case typ.Kind() == reflect.Bool:
		has("boolean")
	case typ.Kind() == reflect.Int || typ.Kind() == reflect.Int64:
		has("integer", "minimum", "maximum")
	default:
		out = append(out, "has a type that this test does not know: "+typ.String())
	}
	return out
}
