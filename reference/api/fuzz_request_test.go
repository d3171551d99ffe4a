// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

var fuzzCeilings = Resources{CPUs: 1 << 20, MemoryBytes: 1 << 40, PIDs: 1 << 20, WorkspaceBytes: 1 << 40, WorkspaceInodes: 1 << 30}

// Seeds are in testdata/fuzz/FuzzDecodeRequest: good requests of each kind and the ambiguous forms
// of the protocol's tests.
//
// FuzzDecodeRequest: each decoder refuses, or what it read has one spelling: encoded again, and
// again in canonical form, it decodes to the same request. What is accepted is, by a second
// reader that is built on the standard library, free of duplicates and of names that the type does
// not have letter by letter, and means the same to that reader. Nothing costs more memory than
// its length allows.
func FuzzDecodeRequest(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzDecoder(t, data, func(b []byte) (CreateRequest, error) { return DecodeCreate(b, fuzzCeilings) })
		fuzzDecoder(t, data, DecodeExec)
		fuzzDecoder(t, data, func(b []byte) (FSRequest, error) {
			var r FSRequest
			if _, err := DecodeFS(b); err != nil {
				return r, err
			}
			return r, decode(b, &r)
		})
	})
}

func fuzzDecoder[T any](t *testing.T, data []byte, dec func([]byte) (T, error)) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := dec(data)
	runtime.ReadMemStats(&after)
	if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(256<<10+64*len(data)) {
		t.Errorf("%T: %d bytes for a text of %d", got, spent, len(data))
	}
	if err != nil {
		if e, ok := err.(*Error); !ok || !e.Code.Known() {
			t.Errorf("%T: refused with %v", got, err)
		}
		return
	}
	if err := plainlyRead(data, reflect.TypeFor[T]()); err != nil {
		t.Errorf("%T: accepted %q: %v", got, data, err)
	}
	var ref T
	if err := json.Unmarshal(data, &ref); err != nil || !same(got, ref) {
		t.Errorf("%T: %+v is %+v to another reader, %v", got, got, ref, err)
	}
	for _, encode := range []func(any) ([]byte, error){strictjson.Marshal, strictjson.Canonical} {
		text, err := encode(got)
		if err != nil {
			t.Fatalf("%T: accepted and not encoded: %v", got, err)
		}
		again, err := dec(text)
		if err != nil || !same(got, again) {
			t.Fatalf("%T: %s is read as %+v, %v", got, text, again, err)
		}
	}
}

// same compares by the text, since nil and empty are one on the wire.
func same(a, b any) bool {
	x, xerr := strictjson.Canonical(a)
	y, yerr := strictjson.Canonical(b)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}

// plainlyRead walks the text by tokens and objects to what the standard library would let pass.
func plainlyRead(data []byte, t reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := readValue(d, t); err != nil {
		return err
	}
	if rest := bytes.TrimLeft(data[d.InputOffset():], " \t\r\n"); len(rest) != 0 {
		return fmt.Errorf("%q behind the value", rest)
	}
	return nil
}

func readValue(d *json.Decoder, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tok, err := d.Token()
	if err != nil {
		return err
	}
	if n, ok := tok.(json.Number); ok && strings.ContainsAny(n.String(), ".eE") {
		return fmt.Errorf("number %s", n)
	}
	open, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if open == '[' {
		if t.Kind() != reflect.Slice {
			return fmt.Errorf("array for %s", t)
		}
		for d.More() {
			if err := readValue(d, t.Elem()); err != nil {
				return err
			}
		}
		_, err = d.Token()
		return err
	}
	if t.Kind() != reflect.Struct {
		return fmt.Errorf("object for %s", t)
	}
	members := map[string]reflect.Type{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		members[name] = t.Field(i).Type
	}
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return err
		}
		name := tok.(string)
		mt, known := members[name]
		if !known || seen[name] {
			return fmt.Errorf("member %q is unknown, or twice", name)
		}
		seen[name] = true
		if err := readValue(d, mt); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// FuzzDecodeError: what is taken for a failure of the union says exactly what the union says.
func FuzzDecodeError(f *testing.F) {
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		e := DecodeError(status, body)
		if e.Code == ResponseInvalid && status != ResponseInvalid.Status() {
			return
		}
		var b ErrorBody
		if err := strictjson.Unmarshal(body, &b, strictjson.Limits{Bytes: MaxAnswerBytes}); err != nil {
			if e.Code != ResponseInvalid {
				t.Fatalf("accepted %q", body)
			}
			return
		}
		if e.Code != ResponseInvalid && (b != e.Code.Body(b.Error.RequestID) || status != e.Code.Status() || !ValidID(b.Error.RequestID)) {
			t.Fatalf("%q with %d is taken for %s", body, status, e.Code)
		}
	})
}
