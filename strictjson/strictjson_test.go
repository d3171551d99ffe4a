// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

type inner struct {
	Count int64  `json:"count"`
	Note  string `json:"note,omitempty"`
}

type Base struct {
	Kind string `json:"kind"`
}

type doc struct {
	Base
	Name  string            `json:"name"`
	List  []inner           `json:"list"`
	Map   map[string]string `json:"map"`
	Ptr   *inner            `json:"ptr"`
	Body  []byte            `json:"body,omitempty"`
	Raw   jsontext.Value    `json:"raw,omitempty"`
	Ratio float64           `json:"ratio,omitempty"`
	On    bool              `json:"on,omitempty"`
}

const good = `{"kind":"k","name":"n","list":[{"count":1}],"map":{"a":"b"},"ptr":null}`

func with(extra string) string { return strings.TrimSuffix(good, "}") + "," + extra + "}" }

func TestUnmarshal(t *testing.T) {
	tests := []struct {
		name, text string
		want       error // nil means accepted
	}{
		{"good", good, nil},
		{"white space around", " " + good + "\n", nil},
		{"optional present", with(`"body":"AAE=","raw":{"x":[1]},"ratio":1.5,"on":true`), nil},
		{"negative integer", strings.Replace(good, `"count":1`, `"count":-1`, 1), nil},
		{"largest integer", strings.Replace(good, `"count":1`, `"count":9007199254740991`, 1), nil},

		{"empty", "", ErrSyntax},
		{"duplicate name", with(`"name":"n"`), ErrSyntax},
		{"duplicate name, escaped", with(`"\u006eame":"n"`), ErrSyntax},
		{"duplicate name in free part", with(`"raw":{"a":1,"a":2}`), ErrSyntax},
		{"case variant", strings.Replace(good, `"name"`, `"Name"`, 1), ErrSchema},
		{"case variant beside", with(`"Name":"n"`), ErrSchema},
		{"unknown", with(`"more":1`), ErrSchema},
		{"unknown inside", strings.Replace(good, `"count":1`, `"count":1,"x":2`, 1), ErrSchema},
		{"missing", strings.Replace(good, `"name":"n",`, ``, 1), ErrSchema},
		{"missing promoted", strings.Replace(good, `"kind":"k",`, ``, 1), ErrSchema},
		{"missing inside", strings.Replace(good, `{"count":1}`, `{}`, 1), ErrSchema},
		{"null array", strings.Replace(good, `[{"count":1}]`, `null`, 1), ErrSchema},
		{"null string", strings.Replace(good, `"n"`, `null`, 1), ErrSchema},
		{"null element", strings.Replace(good, `{"count":1}`, `null`, 1), ErrSchema},
		{"null map value", strings.Replace(good, `"b"`, `null`, 1), ErrSchema},
		{"null free part", with(`"raw":null`), ErrSchema},
		{"null at top", `null`, ErrSchema},
		{"second value", good + `{}`, ErrSyntax},
		{"garbage after", good + `x`, ErrSyntax},
		{"byte order mark", "\ufeff" + good, ErrSyntax},
		{"invalid UTF-8", strings.Replace(good, `"n"`, "\"\xff\"", 1), ErrSyntax},
		{"lone surrogate", strings.Replace(good, `"n"`, `"\ud800"`, 1), ErrSyntax},
		{"truncated", good[:len(good)-1], ErrSyntax},
		{"minus zero", strings.Replace(good, `"count":1`, `"count":-0`, 1), ErrNumber},
		{"fraction", strings.Replace(good, `"count":1`, `"count":1.0`, 1), ErrNumber},
		{"exponent", strings.Replace(good, `"count":1`, `"count":1e2`, 1), ErrNumber},
		{"huge", strings.Replace(good, `"count":1`, `"count":1e400`, 1), ErrNumber},
		{"2^53+1", strings.Replace(good, `"count":1`, `"count":9007199254740993`, 1), ErrNumber},
		{"fraction in free part", with(`"raw":[1.5]`), ErrNumber},
		{"minus zero float", with(`"ratio":-0.0`), ErrNumber},
		{"string for number", strings.Replace(good, `"count":1`, `"count":"1"`, 1), ErrSchema},
		{"number for string", strings.Replace(good, `"n"`, `1`, 1), ErrSchema},
		{"object for array", strings.Replace(good, `[{"count":1}]`, `{}`, 1), ErrSchema},
		{"array for object", strings.Replace(good, `{"a":"b"}`, `[]`, 1), ErrSchema},
		{"base64 spare bits", with(`"body":"AAF="`), ErrEncoded},
		{"base64 newline", with(`"body":"AAE=\n"`), ErrEncoded},
		{"base64 unpadded", with(`"body":"AAE"`), ErrEncoded},
		{"base64 URL alphabet", with(`"body":"__8="`), ErrEncoded},
		{"base64 as array", with(`"body":[0,1]`), ErrSchema},
		{"depth", with(`"raw":` + strings.Repeat("[", 40) + strings.Repeat("]", 40)), ErrLimit},
		{"depth bomb", strings.Repeat("[", 1<<20), ErrSchema},
		{"depth bomb in free part", with(`"raw":` + strings.Repeat("[", 1<<20)), ErrLimit},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := doc{Name: "untouched"}
			err := Unmarshal([]byte(tt.text), &got, Limits{})
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if !reflect.DeepEqual(got, doc{Name: "untouched"}) {
				t.Errorf("refused text changed the target: %+v", got)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	var d doc
	for name, lim := range map[string]Limits{
		"bytes":  {Bytes: len(good) - 1},
		"string": {StringBytes: 3},
		"depth":  {Depth: 2},
	} {
		if err := Unmarshal([]byte(good), &d, lim); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: error %v, want %v", name, err, ErrLimit)
		}
	}
	if err := Unmarshal([]byte(good), &d, Limits{Bytes: len(good), StringBytes: 7, Depth: 3}); err != nil {
		t.Errorf("at the limits: %v", err)
	}
}

func TestMarshalWritesNoNull(t *testing.T) {
	b, err := Marshal(struct {
		S []string          `json:"s"`
		M map[string]string `json:"m"`
	}{})
	if err != nil || string(b) != `{"s":[],"m":{}}` {
		t.Errorf("got %s, %v", b, err)
	}
}

func TestCanonical(t *testing.T) {
	b, err := Canonical(map[string]any{"b": 1, "a": "é<", "€": []int{}})
	if err != nil || string(b) != `{"a":"é<","b":1,"€":[]}` {
		t.Errorf("got %s, %v", b, err)
	}
	for _, v := range []any{1.5, int64(1) << 53, map[string]any{"x": nil}} {
		if b, err := Canonical(v); err == nil {
			t.Errorf("%v: encoded as %s", v, b)
		}
	}
}

// FuzzUnmarshal: refuse, or the value that was read encodes to a text that reads as the same
// value and, canonically, to the same bytes as the input.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(with(`"body":"AAE=","raw":{"x":[1]},"on":true`)))
	f.Add([]byte(with(`"Name":"n"`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a, b doc
		if Unmarshal(data, &a, Limits{}) != nil {
			return
		}
		text, err := Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := Unmarshal(text, &b, Limits{}); err != nil {
			t.Fatalf("own text refused: %v\n%s", err, text)
		}
		again, err := Marshal(b)
		if err != nil || !bytes.Equal(text, again) {
			t.Fatalf("unstable: %s then %s (%v)", text, again, err)
		}
		for _, marker := range []string{"-0,", "-0}", "\ufeff{"} {
			if bytes.Contains(bytes.ReplaceAll(data, []byte(" "), nil), []byte(marker)) && !bytes.Contains(data, []byte(`"`+marker)) && !hasInString(a, marker) {
				t.Fatalf("accepted %q with %q", data, marker)
			}
		}
	})
}

func hasInString(d doc, s string) bool {
	text, _ := Marshal(d)
	return bytes.Contains(text, []byte(s))
}
