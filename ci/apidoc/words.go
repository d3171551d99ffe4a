// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"

	"gopkg.in/yaml.v3"
)

// span is a piece of a line: plain, code, strong, or a link to a schema.
type span struct {
	Text, Link   string
	Code, Strong bool
}

type paragraph []span

// prose reads the little markup that the document uses: an empty line between paragraphs, `code`
// and **strong**.
func prose(text string) (out []paragraph) {
	for p := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if p = strings.Join(strings.Fields(p), " "); p == "" {
			continue
		}
		var line paragraph
		for i, part := range strings.Split(p, "`") {
			if i%2 == 1 {
				line = append(line, span{Text: part, Code: true})
				continue
			}
			for j, piece := range strings.Split(part, "**") {
				if piece != "" {
					line = append(line, span{Text: piece, Strong: j%2 == 1})
				}
			}
		}
		out = append(out, line)
	}
	return out
}

// typed says of a schema in words what may stand there.
func (d document) typed(s node) []span {
	plain := func(parts ...string) []span { return []span{{Text: strings.Join(parts, "")}} }
	if ref := s.get("$ref").text(); ref != "" {
		name := ref[strings.LastIndex(ref, "/")+1:]
		return []span{{Text: name, Link: name}}
	}
	if c := s.get("const"); c.there() {
		if c.text() == "" {
			return plain("empty")
		}
		return []span{{Text: c.text(), Code: true}}
	}
	if values := s.get("enum").list(); len(values) > 0 && s.get("type").text() != "boolean" {
		var out []span
		for i, v := range values {
			if i > 0 {
				out = append(out, span{Text: ", "})
			}
			out = append(out, span{Text: v.text(), Code: true})
		}
		return out
	}
	if any := s.get("anyOf").list(); len(any) > 0 {
		var out []span
		for i, a := range any {
			if i > 0 {
				out = append(out, span{Text: " or "})
			}
			out = append(out, d.typed(a)...)
		}
		return out
	}
	switch kind := s.get("type").text(); kind {
	case "array":
		out := append(plain("list of "), d.typed(s.get("items"))...)
		return append(out, plain(", ", between(s.get("minItems").text(), s.get("maxItems").text()))...)
	case "string":
		bound := ""
		if most := s.get("maxLength").text(); most != "" {
			bound = ", " + between(s.get("minLength").text(), most) + " characters"
		}
		switch {
		case s.get("contentMediaType").there():
			return plain("bytes")
		case s.get("contentEncoding").there():
			return plain("base64", bound)
		}
		out := plain("string", bound)
		if pattern := s.get("pattern").text(); pattern != "" {
			out = append(out, span{Text: ", as "}, span{Text: pattern, Code: true})
		}
		return out
	case "integer":
		return plain("integer, ", between(s.get("minimum").text(), s.get("maximum").text()))
	default:
		return plain(kind)
	}
}

func between(least, most string) string {
	if least == "" {
		return "at most " + grouped(most)
	}
	return grouped(least) + " to " + grouped(most)
}

// grouped writes a whole number for people.
func grouped(digits string) string {
	sign := ""
	if rest, negative := strings.CutPrefix(digits, "-"); negative {
		sign, digits = "−", rest
	}
	if digits == "9007199254740991" {
		return sign + "(2⁵³−1)"
	}
	var out string
	for len(digits) > 3 {
		out, digits = ","+digits[len(digits)-3:]+out, digits[:len(digits)-3]
	}
	return sign + digits + out
}

// compact writes a value as JSON on one line, in the order of the document.
func compact(n node) string { return write(n, "", false) }

// indented writes it over lines.
func indented(n node, margin string) string { return write(n, margin, true) }

func write(n node, margin string, over bool) string {
	var parts []string
	begin, end := "[", "]"
	deeper := margin + "  "
	switch {
	case n.Node == nil:
		return "null"
	case n.Kind == yaml.ScalarNode:
		if n.Tag == "!!str" {
			return quoted(n.Value)
		}
		return n.Value
	case n.Kind == yaml.MappingNode:
		begin, end = "{", "}"
		for _, p := range n.pairs() {
			parts = append(parts, quoted(p.key)+": "+write(p.value, deeper, over))
		}
	default:
		for _, v := range n.list() {
			parts = append(parts, write(v, deeper, over))
		}
	}
	if one := begin + strings.Join(parts, ", ") + end; !over || len(one) < 72 && !strings.Contains(one, "\n") {
		return one
	}
	return begin + "\n" + deeper + strings.Join(parts, ",\n"+deeper) + "\n" + margin + end
}

func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(s) != nil {
		return `""` // a string always encodes
	}
	return strings.TrimSuffix(b.String(), "\n")
}
