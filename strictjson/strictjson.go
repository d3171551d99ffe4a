// SPDX-License-Identifier: Apache-2.0

// Package strictjson is the one decoder for JSON that crosses a trust boundary.
//
// It owns the question "is this text exactly one value of this Go type". On top of
// github.com/go-json-experiment/json it refuses what that package lets through: unknown and
// case-variant names, members that are missing, null where the type has no pointer, minus
// zero, integers that a float64 cannot hold (RFC 7493, section 2.2), fractions and exponents
// for integers, base64 that is not the encoding of what it decodes to, and depth, size and
// strings beyond the limits. Duplicate names, invalid UTF-8, a byte order mark and anything
// after the value are refused by the library underneath.
//
// A member is required unless its tag says omitempty or omitzero. It never changes the target
// when it returns an error, never merges into old contents, and never guesses.
package strictjson

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/gowebpki/jcs"
)

// Limits bound what is read. A zero field means the field of [Default].
type Limits struct {
	Bytes       int // of the whole text
	Depth       int // nested objects and arrays; a bare scalar has depth 0
	StringBytes int // of one string as written with its quotes, or of one decoded name
}

// Default fits every message and document of this project except an evidence payload.
var Default = Limits{Bytes: 4 << 20, Depth: 32, StringBytes: 2 << 20}

// Sentinels say what kind of refusal an error is. Every error of [Unmarshal] matches
// exactly one of them, or ErrSyntax.
var (
	ErrSyntax  = errors.New("not strict JSON")              // grammar, duplicates, UTF-8, trailing data
	ErrLimit   = errors.New("JSON beyond its limits")       // bytes, depth, string
	ErrSchema  = errors.New("JSON of another shape")        // unknown, missing, null, wrong kind
	ErrNumber  = errors.New("number not allowed")           // -0, fraction, exponent, beyond 2^53-1
	ErrEncoded = errors.New("base64 that is not canonical") // spare bits, newline, other alphabet
)

// MaxInteger is the largest magnitude of an integer that is accepted or written.
const MaxInteger = 1<<53 - 1

// Unmarshal decodes data into v, which must be a non-nil pointer. On error v is unchanged.
func Unmarshal(data []byte, v any, lim Limits) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return fmt.Errorf("decode into %T: %w", v, ErrSchema)
	}
	if lim.Bytes == 0 {
		lim.Bytes = Default.Bytes
	}
	if lim.Depth == 0 {
		lim.Depth = Default.Depth
	}
	if lim.StringBytes == 0 {
		lim.StringBytes = Default.StringBytes
	}
	if len(data) > lim.Bytes {
		return fmt.Errorf("text of %d bytes, at most %d: %w", len(data), lim.Bytes, ErrLimit)
	}
	if err := walk(data, rv.Type().Elem(), lim); err != nil {
		return err
	}
	fresh := reflect.New(rv.Type().Elem())
	if err := json.Unmarshal(data, fresh.Interface(), json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%w: %w", ErrSchema, err)
	}
	rv.Elem().Set(fresh.Elem())
	return nil
}

// Marshal encodes v with struct members in the order of the type and map names sorted. Nil
// slices and maps are written as empty ones, so that the text can be read back.
func Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode JSON: %w", err)
	}
	return b, nil
}

// Canonical encodes v by RFC 8785. Numbers must be integers of at most [MaxInteger], since
// the canonical form of others depends on float64.
func Canonical(v any) ([]byte, error) {
	b, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	if err := walk(b, reflect.TypeFor[any](), Limits{Bytes: len(b), Depth: 10000, StringBytes: len(b)}); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	c, err := jcs.Transform(b)
	if err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	return c, nil
}
