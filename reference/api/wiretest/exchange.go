// SPDX-License-Identifier: Apache-2.0

package wiretest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// maxRequest bounds what a test may send, in bytes: a request is read before it goes out.
const maxRequest = 256 << 20

// Reporter takes findings; *testing.T is one. Findings may come from other goroutines.
type Reporter interface {
	Errorf(format string, args ...any)
}

// Transport holds every exchange of next against the document.
type Transport struct {
	c    *Contract
	next http.RoundTripper
	to   Reporter

	mu   sync.Mutex
	seen map[string]int // guarded by mu
}

// Transport returns next with every exchange checked.
func (c *Contract) Transport(to Reporter, next http.RoundTripper) *Transport {
	return &Transport{c: c, next: next, to: to, seen: map[string]int{}}
}

// Seen counts whole answers by operation and status, or code for a failure: "exec 200",
// "exec REMOTE_WORKER_TIMEOUT". Lines and events are there too: "exec line stdout".
func (t *Transport) Seen() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]int{}
	for k, n := range t.seen {
		out[k] = n
	}
	return out
}

func (t *Transport) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen[fmt.Sprintf(format, args...)]++
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	out := r.Clone(r.Context())
	out.Body = http.NoBody
	if len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	target := r.URL.RequestURI()
	o, params := t.c.match(r.Method, target)
	invalid := t.c.request(r, o, params, target, body)
	res, err := t.next.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	x := exchange{t: t, o: o, name: r.Method + " " + target, res: res}
	if o != nil {
		x.name = o.op.OperationID
	}
	if invalid != nil && res.StatusCode < http.StatusBadRequest {
		x.fault("status %d for a request that the document refuses: %v", res.StatusCode, invalid)
	}
	x.begin()
	return res, nil
}

// request says why the document does not allow a request.
func (c *Contract) request(r *http.Request, o *operation, params map[string]string, target string, body []byte) error {
	if o == nil {
		return errors.New("no such operation")
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return err
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return err
	}
	if err := o.query(query); err != nil {
		return err
	}
	in := r.Clone(r.Context())
	in.URL, in.Body, in.ContentLength = u, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if o.op.RequestBody != nil {
		for media := range o.op.RequestBody.Value.Content {
			in.Header.Set("Content-Type", media) // not looked at by the worker
		}
	}
	return openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request: in, PathParams: params, QueryParams: query,
		Route: &routers.Route{Spec: c.Doc, Path: o.path, PathItem: o.item, Method: o.method, Operation: o.op},
		Options: &openapi3filter.Options{
			RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true,
			AuthenticationFunc: func(context.Context, *openapi3filter.AuthenticationInput) error { return c.capability(r.Header, o) },
		},
	})
}

// query refuses names that are not declared, which kin-openapi passes over, and repeated ones.
func (o *operation) query(q url.Values) error {
	for name, values := range q {
		if len(values) != 1 || o.op.Parameters.GetByInAndName("query", name) == nil {
			return fmt.Errorf("query name %q, %d times", name, len(values))
		}
	}
	names, _ := o.op.Extensions["x-exactly-one"].([]any)
	n := 0
	for _, name := range names {
		if q.Has(fmt.Sprint(name)) {
			n++
		}
	}
	if len(names) > 0 && n != 1 {
		return fmt.Errorf("%d of %v, one is needed", n, names)
	}
	return nil
}

// capability checks the claims of the operation's token, not its signature.
func (c *Contract) capability(h http.Header, o *operation) error {
	token, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	if !ok || len(h.Values("Authorization")) != 1 || len(token) > api.MaxTokenBytes {
		return errors.New("not one bearer token")
	}
	claims, err := segment(token, 1)
	if err != nil {
		return err
	}
	op, _ := o.op.Extensions["x-op"].(string)
	schema := "WorkspaceClaims"
	switch {
	case api.Op(op) == api.OpHealth:
		schema = "HealthClaims"
	case api.Op(op).OnSandbox():
		schema = "SandboxClaims"
	}
	return c.Check(schema, claims)
}

// segment decodes part n of a compact JWS.
func segment(token string, n int) ([]byte, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("a token of %d parts", len(parts))
	}
	return base64.RawURLEncoding.Strict().DecodeString(parts[n])
}

// exchange is one answer on its way.
type exchange struct {
	t    *Transport
	o    *operation // nil for a request that is not in the document
	name string
	res  *http.Response
}

func (x *exchange) fault(format string, args ...any) {
	x.t.to.Errorf("contract: %s: "+format, append([]any{x.name}, args...)...)
}

// begin checks status and headers, and sees to it that the body is checked as it is read.
func (x *exchange) begin() {
	status := x.res.StatusCode
	media, _, err := mime.ParseMediaType(x.res.Header.Get("Content-Type"))
	if err != nil && x.res.Header.Get("Content-Type") != "" {
		x.fault("Content-Type %q: %v", x.res.Header.Get("Content-Type"), err)
	}
	for name := range x.res.Header {
		switch name {
		case "Content-Type", "Content-Length", "Date", "Connection", "Transfer-Encoding", "Cache-Control", "X-Content-Type-Options":
		default:
			x.fault("header field %s is not declared", name)
		}
	}
	if x.o == nil {
		x.whole(media, nil)
		return
	}
	ref := x.o.op.Responses.Status(status)
	if ref == nil {
		x.fault("status %d is not declared", status)
		x.whole(media, nil)
		return
	}
	for name, h := range ref.Value.Headers {
		if h.Value.Required && x.res.Header.Get(name) == "" {
			x.fault("header field %s is missing", name)
		}
	}
	if len(ref.Value.Content) == 0 {
		x.body(&nothing{x: x})
		x.t.note("%s %d", x.name, status)
		return
	}
	content := ref.Value.Content[media]
	switch {
	case content == nil:
		x.fault("status %d with media type %q, which is not declared", status, media)
	case media == api.TypeNDJSON:
		x.body(&lines{x: x, schema: schemaName(content, "x-line")})
	case media == api.TypeEvents:
		x.body(&events{x: x, kinds: content.Schema})
	case media == api.TypeJSON:
		x.whole(media, content.Schema)
	default:
		x.t.note("%s %d", x.name, status)
	}
}

func schemaName(m *openapi3.MediaType, key string) string {
	name, _ := extension(m.Schema, key).(string)
	return name
}

// whole checks a JSON body when all of it has been read.
func (x *exchange) whole(media string, schema *openapi3.SchemaRef) {
	x.body(&object{x: x, media: media, schema: schema})
}

func (x *exchange) body(s sink) { x.res.Body = &tee{ReadCloser: x.res.Body, sink: s} }
