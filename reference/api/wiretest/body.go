// SPDX-License-Identifier: Apache-2.0

package wiretest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// maxLine bounds what a checker keeps of a body, in bytes.
const maxLine = api.MaxAnswerBytes + 1

// sink sees a body as it is read. end comes once, at its regular end, and not when the connection
// breaks or the reader leaves.
type sink interface {
	add(p []byte)
	end()
}

type tee struct {
	io.ReadCloser
	sink sink
	done bool
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if n > 0 {
		t.sink.add(p[:n])
	}
	if errors.Is(err, io.EOF) && !t.done {
		t.done = true
		t.sink.end()
	}
	return n, err
}

// nothing is the sink of an answer without a body.
type nothing struct {
	x     *exchange
	found bool
}

func (s *nothing) add([]byte) {
	if !s.found {
		s.found = true
		s.x.fault("status %d has a body", s.x.res.StatusCode)
	}
}
func (s *nothing) end() {}

// object is the sink of a JSON answer. Without a schema it must be a failure.
type object struct {
	x      *exchange
	media  string
	schema *openapi3.SchemaRef
	text   bytes.Buffer
}

func (s *object) add(p []byte) {
	if s.text.Len() < maxLine {
		s.text.Write(p)
	}
}

func (s *object) end() {
	x, status := s.x, s.x.res.StatusCode
	if s.media != api.TypeJSON {
		x.fault("status %d with media type %q", status, s.media)
		return
	}
	if s.schema != nil {
		if err := x.t.c.against(s.schema.Value, "body of its schema", s.text.Bytes()); err != nil {
			x.fault("status %d: %v", status, err)
		}
	}
	if status < http.StatusBadRequest {
		var inner struct {
			Error *api.ErrorDetail `json:"error"`
		}
		if err := json.Unmarshal(s.text.Bytes(), &inner); err != nil {
			x.fault("status %d: %v", status, err)
		}
		x.detail(inner.Error)
		x.t.note("%s %d", x.name, status)
		return
	}
	code, err := x.t.c.failure(x.o, status, s.text.Bytes())
	if err != nil {
		x.fault("status %d: %v", status, err)
		return
	}
	x.t.note("%s %s", x.name, code)
}

// lines is the sink of NDJSON.
type lines struct {
	x      *exchange
	schema string
	rest   []byte
	types  []string
}

func (s *lines) add(p []byte) {
	s.rest = append(s.rest, p...)
	for {
		line, rest, found := bytes.Cut(s.rest, []byte("\n"))
		if !found {
			break
		}
		s.line(line)
		s.rest = rest
	}
	if len(s.rest) > maxLine {
		s.x.fault("a line of more than %d bytes", maxLine)
		s.rest = nil
	}
}

func (s *lines) line(text []byte) {
	if n := len(s.types); n > 0 && (s.types[n-1] == api.ExecEnded || s.types[n-1] == api.ExecFailed) {
		s.x.fault("a line behind the last one: %.200s", text)
	}
	if err := s.x.t.c.Check(s.schema, text); err != nil {
		s.x.fault("line %d: %v: %.200s", len(s.types)+1, err, text)
	}
	var e struct {
		Type  string           `json:"type"`
		Error *api.ErrorDetail `json:"error"`
	}
	if err := json.Unmarshal(text, &e); err != nil {
		s.x.fault("line %d: %v", len(s.types)+1, err)
	}
	if len(s.types) == 0 && e.Type != api.ExecStarted {
		s.x.fault("the first line is %q", e.Type)
	}
	s.x.detail(e.Error)
	s.types = append(s.types, e.Type)
	s.x.t.note("%s line %s", s.x.name, e.Type)
}

func (s *lines) end() {
	switch last := len(s.types) - 1; {
	case len(s.rest) != 0:
		s.x.fault("%d bytes behind the last LF", len(s.rest))
	case last < 0 || s.types[last] != api.ExecEnded && s.types[last] != api.ExecFailed:
		s.x.fault("the stream ended after %q", s.types)
	default:
		s.x.t.note("%s %d", s.x.name, s.x.res.StatusCode)
	}
}

// detail checks a failure inside an answer against the table of codes.
func (x *exchange) detail(d *api.ErrorDetail) {
	if d == nil {
		return
	}
	of := x.o
	if id, ok := x.o.op.Extensions["x-outcome-of"].(string); ok { // it repeats the answer of another operation
		of = x.t.c.byID(id)
	}
	b, err := json.Marshal(api.ErrorBody{Error: *d})
	if err == nil {
		_, err = x.t.c.failure(of, d.Code.Status(), b)
	}
	if err != nil {
		x.fault("%v", err)
	}
}

// events is the sink of server-sent events (HTML standard, section 9.2), in the one form that the
// document allows: comments, and events of two lines.
type events struct {
	x     *exchange
	kinds *openapi3.SchemaRef
	rest  []byte
	kind  string
	data  string
	open  bool // lines of an event were read
	lines int
	ended bool
}

func (s *events) add(p []byte) {
	s.rest = append(s.rest, p...)
	for {
		line, rest, found := bytes.Cut(s.rest, []byte("\n"))
		if !found {
			break
		}
		s.line(string(line))
		s.rest = rest
	}
	if len(s.rest) > maxLine {
		s.x.fault("a line of more than %d bytes", maxLine)
		s.rest = nil
	}
}

func (s *events) line(text string) {
	s.lines++
	if s.lines == 1 && text != ": ready" {
		s.x.fault("the first line is %q", text)
	}
	name, value, _ := strings.Cut(text, ": ")
	switch {
	case text == "" && s.open:
		s.event()
		s.kind, s.data, s.open = "", "", false
	case text == "", strings.HasPrefix(text, ":"):
	case s.ended:
		s.x.fault("a line behind end: %.200q", text)
	case name == "event" && s.kind == "":
		s.kind, s.open = value, true
	case name == "data" && s.data == "":
		s.data, s.open = value, true
	default:
		s.x.fault("line %.200q", text)
	}
}

func (s *events) event() {
	kinds, _ := extension(s.kinds, "x-events").(map[string]any)
	schema, _ := kinds[s.kind].(string)
	if schema == "" {
		s.x.fault("event %q is not declared", s.kind)
		return
	}
	if err := s.x.t.c.Check(schema, []byte(s.data)); err != nil {
		s.x.fault("event %s: %v: %.200s", s.kind, err, s.data)
	}
	s.x.t.note("%s event %s", s.x.name, s.kind)
	if s.ended = s.kind == "end"; s.ended {
		var d api.ErrorDetail
		if err := json.Unmarshal([]byte(s.data), &d); err != nil {
			s.x.fault("event end: %v", err)
			return
		}
		s.x.detail(&d)
		s.x.t.note("%s %d", s.x.name, s.x.res.StatusCode) // here: a reader may leave before the body's own end
	}
}

func (s *events) end() {
	if !s.ended || len(s.rest) != 0 {
		s.x.fault("the stream ended without end")
	}
}
