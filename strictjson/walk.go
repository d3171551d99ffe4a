// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// walker reads the text once beside the Go type that it is to become.
type walker struct {
	dec      *jsontext.Decoder
	lim      Limits
	shapes   map[reflect.Type]shape
	resolved map[reflect.Type]resolution // asking a type for its methods is slow
}

// shape is a struct as JSON has it.
type shape struct {
	members  map[string]member
	required []string // in the order of the type
}

type member struct {
	typ    reflect.Type
	at     int  // in shape.required, or -1
	opaque bool // the tag changes the encoding: only generic checks
}

// resolution is what resolve says of a type.
type resolution struct {
	typ              reflect.Type
	nullable, opaque bool
}

func walk(data []byte, t reflect.Type, lim Limits) error {
	w := &walker{
		// A Buffer is read in place, without a copy; nothing writes to it.
		dec:      jsontext.NewDecoder(bytes.NewBuffer(data)),
		lim:      lim,
		shapes:   map[reflect.Type]shape{},
		resolved: map[reflect.Type]resolution{},
	}
	if err := w.value(t); err != nil {
		return fmt.Errorf("%w at %q", err, string(w.dec.StackPointer()))
	}
	switch _, err := w.dec.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("after the value: %w: %w", ErrSyntax, err)
	}
	return fmt.Errorf("second value: %w", ErrSyntax)
}

// anyType stands for "no type known": generic checks only.
var anyType = reflect.TypeFor[any]()

func (w *walker) value(t reflect.Type) error {
	r, ok := w.resolved[t]
	if !ok {
		r = resolve(t)
		w.resolved[t] = r
	}
	t = r.typ
	kind := w.dec.PeekKind()
	if kind == 'n' {
		if !r.nullable {
			if _, err := w.dec.ReadToken(); err != nil {
				return fmt.Errorf("%w: %w", ErrSyntax, err)
			}
			return fmt.Errorf("null: %w", ErrSchema)
		}
		_, err := w.dec.ReadToken()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrSyntax, err)
		}
		return nil
	}
	if r.opaque {
		t = anyType
	}
	switch kind {
	case '{':
		return w.object(t)
	case '[':
		return w.array(t)
	}
	return w.scalar(t)
}

// resolve strips pointers. A type that decodes itself is opaque.
func resolve(t reflect.Type) resolution {
	nullable := false
	for {
		if t != anyType && decodesItself(t) {
			return resolution{t, nullable, true}
		}
		if t.Kind() != reflect.Pointer {
			return resolution{t, nullable, t.Kind() == reflect.Interface}
		}
		nullable = true
		t = t.Elem()
	}
}

func decodesItself(t reflect.Type) bool {
	if t.Kind() == reflect.Interface {
		return false
	}
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		p.Implements(reflect.TypeFor[json.UnmarshalerFrom]()) ||
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func (w *walker) open() error {
	if _, err := w.dec.ReadToken(); err != nil {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	if w.dec.StackDepth() > w.lim.Depth {
		return fmt.Errorf("depth above %d: %w", w.lim.Depth, ErrLimit)
	}
	return nil
}

func (w *walker) object(t reflect.Type) error {
	var sh shape
	switch {
	case t.Kind() == reflect.Struct:
		sh = w.shape(t)
	case t.Kind() != reflect.Map && t != anyType && t.Kind() != reflect.Interface && !decodesItself(t):
		return fmt.Errorf("object for %s: %w", t, ErrSchema)
	}
	if err := w.open(); err != nil {
		return err
	}
	var few [64]bool // without an allocation for all but very wide structs
	seen := few[:]
	if len(sh.required) > len(few) {
		seen = make([]bool, len(sh.required))
	}
	for w.dec.PeekKind() != '}' {
		tok, err := w.dec.ReadToken()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrSyntax, err)
		}
		name := tok.String()
		if len(name) > w.lim.StringBytes {
			return fmt.Errorf("name of %d bytes: %w", len(name), ErrLimit)
		}
		vt := anyType
		switch {
		case sh.members != nil:
			m, ok := sh.members[name]
			if !ok {
				return fmt.Errorf("unknown member: %w", ErrSchema)
			}
			if m.at >= 0 {
				seen[m.at] = true
			}
			if !m.opaque {
				vt = m.typ
			}
		case t.Kind() == reflect.Map && !decodesItself(t):
			vt = t.Elem()
		}
		if err := w.value(vt); err != nil {
			return err
		}
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	for i, name := range sh.required {
		if !seen[i] {
			return fmt.Errorf("member %q missing: %w", name, ErrSchema)
		}
	}
	return nil
}

func (w *walker) array(t reflect.Type) error {
	et := anyType
	switch {
	case (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && !isBytes(t):
		et = t.Elem()
	case t != anyType && t.Kind() != reflect.Interface && !decodesItself(t):
		return fmt.Errorf("array for %s: %w", t, ErrSchema)
	}
	if err := w.open(); err != nil {
		return err
	}
	for w.dec.PeekKind() != ']' {
		if err := w.value(et); err != nil {
			return err
		}
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	return nil
}

func (w *walker) scalar(t reflect.Type) error {
	raw, err := w.dec.ReadValue()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	switch raw.Kind() {
	case '"':
		if len(raw) > w.lim.StringBytes {
			return fmt.Errorf("string of %d bytes: %w", len(raw), ErrLimit)
		}
		if isBytes(t) {
			return canonicalBase64(raw)
		}
	case '0':
		switch t.Kind() {
		case reflect.Float32, reflect.Float64:
			f, err := strconv.ParseFloat(string(raw), 64)
			if err != nil || (f == 0 && raw[0] == '-') {
				return fmt.Errorf("%s: %w", clip(raw), ErrNumber)
			}
			return nil
		}
		return integer(raw)
	}
	return nil
}

func integer(raw []byte) error {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n > MaxInteger || n < -MaxInteger || (n == 0 && raw[0] == '-') {
		return fmt.Errorf("%s: %w", clip(raw), ErrNumber)
	}
	return nil
}

func canonicalBase64(raw []byte) error {
	s := raw[1 : len(raw)-1] // without the quotes
	if bytes.IndexByte(s, '\\') >= 0 {
		var err error
		if s, err = jsontext.AppendUnquote(nil, raw); err != nil {
			return fmt.Errorf("%w: %w", ErrSyntax, err)
		}
	}
	if !canonical64(s) {
		return ErrEncoded
	}
	return nil
}

// canonical64 says whether s is what encoding its bytes gives. The library's Strict mode looks at the
// spare bits; it ignores CR and LF, and padding ends a text only as a whole.
func canonical64(s []byte) bool {
	const part = 4096 // a multiple of 4, so that each part is decoded by itself
	var to [part / 4 * 3]byte
	for len(s) > 0 {
		p := s[:min(part, len(s))]
		s = s[len(p):]
		if bytes.IndexByte(p, '\n') >= 0 || bytes.IndexByte(p, '\r') >= 0 || len(s) > 0 && bytes.IndexByte(p, '=') >= 0 {
			return false
		}
		if _, err := base64.StdEncoding.Strict().Decode(to[:], p); err != nil {
			return false
		}
	}
	return true
}

func isBytes(t reflect.Type) bool {
	return (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() == reflect.Uint8
}

func clip(raw []byte) string {
	if len(raw) > 40 {
		return string(raw[:40]) + "..."
	}
	return string(raw)
}

// shape lists the members of a struct, promoted ones included.
func (w *walker) shape(t reflect.Type) shape {
	if s, ok := w.shapes[t]; ok {
		return s
	}
	s := shape{members: map[string]member{}}
	add := func(name string, m member, required bool) {
		m.at = -1
		if required {
			m.at = len(s.required)
			s.required = append(s.required, name)
		}
		s.members[name] = m
	}
	w.shapes[t] = s // against endless descent: a type may hold itself
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		if tag == "-" {
			continue
		}
		parts := strings.Split(tag, ",")
		name := parts[0]
		if f.Anonymous && name == "" {
			et := f.Type
			if et.Kind() == reflect.Pointer {
				et = et.Elem()
			}
			inner := w.shape(et)
			for n, m := range inner.members {
				if _, taken := s.members[n]; !taken && m.at < 0 {
					add(n, m, false)
				}
			}
			for _, n := range inner.required { // in the order of the type
				if _, taken := s.members[n]; !taken {
					add(n, inner.members[n], f.Type.Kind() != reflect.Pointer)
				}
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		if !tagged || name == "" {
			name = f.Name
		}
		m := member{typ: f.Type}
		required := true
		for _, o := range parts[1:] {
			switch {
			case o == "omitempty" || o == "omitzero":
				required = false
			case o == "string" || strings.HasPrefix(o, "format"):
				m.opaque = true
			}
		}
		add(name, m, required)
	}
	w.shapes[t] = s
	return s
}
