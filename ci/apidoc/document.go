// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// page is all that the layout shows, in the order of the document.
type page struct {
	Title, Version, Summary string
	Intro                   []paragraph
	Limits                  []limit
	Groups                  []group
	Capability              []paragraph
	Codes                   []code
	Schemas                 []schema
}

type limit struct{ Name, Value, Unit, Of string }

type group struct {
	Name, About string
	Operations  []operation
}

type operation struct {
	ID, Method, Path, Summary string
	About                     []paragraph
	Open                      bool // needs no capability
	Parameters                []member
	Request                   []body
	RequestAbout              []paragraph
	Answers                   []answer
}

// body is one media type with what it holds.
type body struct {
	Media   string
	Type    []span
	Example string
}

type answer struct {
	Status string
	About  []paragraph
	Bodies []body
	Codes  []string // without their prefix
}

type code struct {
	Name, Status, From, Message, Meaning string
	Retryable                            bool
}

type schema struct {
	Name     string
	About    []paragraph
	Type     []span // of what is no object
	Members  []member
	Rules    string // what holds between members
	Examples []string
}

type member struct {
	Name, Where string
	Required    bool
	Type        []span
	About       []paragraph
}

// node is a value of the document. Its methods answer nothing for what is not there.
type node struct{ *yaml.Node }

func (n node) get(path ...string) node {
	for _, key := range path {
		next := node{}
		for _, p := range n.pairs() {
			if p.key == key {
				next = p.value
			}
		}
		n = next
	}
	return n
}

type pair struct {
	key   string
	value node
}

func (n node) pairs() (out []pair) {
	if n.Node == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		out = append(out, pair{n.Content[i].Value, node{n.Content[i+1]}})
	}
	return out
}

func (n node) list() (out []node) {
	if n.Node == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range n.Content {
		out = append(out, node{c})
	}
	return out
}

func (n node) text() string {
	if n.Node == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

func (n node) there() bool { return n.Node != nil }

// document resolves references.
type document struct{ root node }

func (d document) resolve(n node) node {
	ref := n.get("$ref").text()
	if ref == "" {
		return n
	}
	return d.root.get(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
}

func read(text []byte) (page, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return page{}, fmt.Errorf("read document: %w", err)
	}
	if len(doc.Content) != 1 {
		return page{}, fmt.Errorf("a document of %d values", len(doc.Content))
	}
	d := document{node{doc.Content[0]}}
	info := d.root.get("info")
	p := page{
		Title: info.get("title").text(), Version: info.get("version").text(), Summary: info.get("summary").text(), Intro: prose(info.get("description").text()),
		Capability: prose(d.root.get("components", "securitySchemes", "capability", "description").text()),
	}
	for _, l := range d.root.get("x-limits").list() {
		p.Limits = append(p.Limits, limit{l.get("name").text(), grouped(l.get("value").text()), l.get("unit").text(), l.get("of").text()})
	}
	for _, t := range d.root.get("tags").list() {
		p.Groups = append(p.Groups, group{Name: t.get("name").text(), About: t.get("description").text()})
	}
	for _, path := range d.root.get("paths").pairs() {
		for _, o := range path.value.pairs() {
			if o.key == "parameters" {
				continue
			}
			op := d.operation(path.key, o.key, o.value, path.value.get("parameters"))
			i := slices.IndexFunc(p.Groups, func(g group) bool {
				return len(o.value.get("tags").list()) == 1 && g.Name == o.value.get("tags").list()[0].text()
			})
			if i < 0 {
				return page{}, fmt.Errorf("operation %s has no tag of the list", op.ID)
			}
			p.Groups[i].Operations = append(p.Groups[i].Operations, op)
		}
	}
	for _, c := range d.root.get("components", "schemas", "ErrorCode", "x-codes").list() {
		p.Codes = append(p.Codes, code{c.get("code").text(), c.get("status").text(), c.get("from").text(), c.get("message").text(), c.get("meaning").text(), c.get("retryable").text() == "true"})
	}
	for _, s := range d.root.get("components", "schemas").pairs() {
		p.Schemas = append(p.Schemas, d.schema(s.key, s.value))
	}
	return p, nil
}

func (d document) operation(path, method string, o, shared node) operation {
	op := operation{
		ID: o.get("operationId").text(), Method: strings.ToUpper(method), Path: path, Summary: o.get("summary").text(), About: prose(o.get("description").text()),
		Open: o.get("security").there() && len(o.get("security").list()) == 0,
	}
	for _, p := range append(shared.list(), o.get("parameters").list()...) {
		p = d.resolve(p)
		op.Parameters = append(op.Parameters, member{
			Name: p.get("name").text(), Where: p.get("in").text(), Required: p.get("required").text() == "true",
			Type: d.typed(p.get("schema")), About: prose(p.get("description").text()),
		})
	}
	op.Request, op.RequestAbout = d.bodies(o.get("requestBody", "content")), prose(o.get("requestBody", "description").text())
	for _, a := range o.get("responses").pairs() {
		r := d.resolve(a.value)
		out := answer{Status: a.key, About: prose(r.get("description").text())}
		if a.key < "400" {
			out.Bodies = d.bodies(r.get("content"))
		}
		for _, c := range o.get("x-codes").list() {
			if d.status(c.text()) == a.key {
				out.Codes = append(out.Codes, c.text())
			}
		}
		op.Answers = append(op.Answers, out)
	}
	return op
}

func (d document) status(name string) string {
	for _, c := range d.root.get("components", "schemas", "ErrorCode", "x-codes").list() {
		if c.get("code").text() == name {
			return c.get("status").text()
		}
	}
	return ""
}

// bodies shows the first example of each media type's schema, and all of a stream's lines.
func (d document) bodies(content node) (out []body) {
	for _, c := range content.pairs() {
		s := c.value.get("schema")
		b := body{Media: c.key, Type: d.typed(s)}
		examples := d.resolve(s).get("examples").list()
		if len(examples) > 0 {
			examples = examples[:1]
		}
		if line := s.get("x-line").text(); line != "" {
			b.Type = []span{{Text: "lines of "}, {Text: line, Link: line}}
			examples = d.root.get("components", "schemas", line, "examples").list()
		}
		for _, e := range examples {
			if c.key == "application/x-ndjson" {
				b.Example += compact(e) + "\n"
			} else {
				b.Example += indented(e, "")
			}
		}
		if events := s.get("x-events"); events.there() {
			b.Type = []span{{Text: "events"}}
			for _, e := range events.pairs() {
				b.Type = append(b.Type, span{Text: " "}, span{Text: e.key, Code: true}, span{Text: " of "}, span{Text: e.value.text(), Link: e.value.text()})
				if ex := d.root.get("components", "schemas", e.value.text(), "examples").list(); len(ex) > 0 {
					b.Example += "event: " + e.key + "\ndata: " + compact(ex[0]) + "\n\n"
				}
			}
			b.Example = ": ready\n\n" + b.Example
		}
		b.Example = strings.TrimRight(b.Example, "\n")
		out = append(out, b)
	}
	return out
}

func (d document) schema(name string, s node) schema {
	out := schema{Name: name, About: prose(s.get("description").text())}
	if s.get("type").text() != "object" {
		out.Type = d.typed(s)
	}
	var required []string
	for _, r := range s.get("required").list() {
		required = append(required, r.text())
	}
	for _, m := range s.get("properties").pairs() {
		out.Members = append(out.Members, member{Name: m.key, Required: slices.Contains(required, m.key), Type: d.typed(m.value), About: prose(m.value.get("description").text())})
	}
	if s.get("type").text() == "object" {
		for _, rule := range []string{"oneOf", "allOf", "not", "minProperties", "maxProperties"} {
			if r := s.get(rule); r.there() {
				out.Rules += rule + ": " + compact(r) + "\n"
			}
		}
	}
	for _, e := range s.get("examples").list() {
		out.Examples = append(out.Examples, indented(e, ""))
	}
	return out
}
