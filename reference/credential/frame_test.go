// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// golden are whole frames. A change of any of them is a new version of the format.
var golden = []struct {
	name   string
	fields []Field
	hex    string
}{
	{"one", []Field{{"A", Value("xyz")}}, "484d4331" + "0001" + "0001" + "00000003" + "41" + "78797a"},
	{"two, one empty", []Field{{"TOKEN", Value{}}, {"b\xff", Value{0, '\n'}}},
		"484d4331" + "0002" + "0005" + "00000000" + "544f4b454e" + "0002" + "00000002" + "62ff" + "000a"},
}

func TestGoldenFrames(t *testing.T) {
	for _, tt := range golden {
		t.Run(tt.name, func(t *testing.T) {
			b, err := EncodeFrame(tt.fields)
			if err != nil || hex.EncodeToString(b) != tt.hex {
				t.Fatalf("%s, %v\nwant %s", hex.EncodeToString(b), err, tt.hex)
			}
			if cap(b) != len(b) {
				t.Errorf("capacity %d of %d bytes: it was moved while it grew", cap(b), len(b))
			}
			got, err := DecodeFrame(b)
			if err != nil || len(got) != len(tt.fields) {
				t.Fatalf("%d fields, %v", len(got), err)
			}
			for i, f := range got {
				if f.Name != tt.fields[i].Name || !bytes.Equal(f.Value, tt.fields[i].Value) {
					t.Errorf("field %d changes", i)
				}
			}
		})
	}
}

func TestLargestFrame(t *testing.T) {
	var fields []Field
	for i := range MaxFields {
		name := strings.Repeat("n", MaxNameBytes-2) + fmt.Sprintf("%02d", i)
		fields = append(fields, Field{name, make(Value, MaxValueBytes/MaxFields)})
	}
	b, err := EncodeFrame(fields)
	if err != nil || len(b) != MaxFrameBytes {
		t.Fatalf("%d bytes, %v, want %d", len(b), err, MaxFrameBytes)
	}
	if _, err := DecodeFrame(b); err != nil {
		t.Error(err)
	}
}

func TestBadFrames(t *testing.T) {
	good, err := hex.DecodeString(golden[0].hex)
	if err != nil {
		t.Fatal(err)
	}
	with := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	twice := append(with(5, 2), good[6:]...)
	for name, b := range map[string][]byte{
		"empty": nil, "magic": with(3, '2'), "no field": with(5, 0)[:6], "17 fields": with(5, 17), "two announced": with(5, 2),
		"cut": good[:len(good)-1], "trailing": append(bytes.Clone(good), 0), "no name": append(with(7, 0)[:12], "xyz"...),
		"value of 2^32-1": with(8, 0xff, 0xff, 0xff, 0xff), "name of 65535": with(6, 0xff, 0xff), "twice": twice,
		"beyond every bound": make([]byte, MaxFrameBytes+1),
	} {
		if got, err := DecodeFrame(b); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %d fields, %v", name, len(got), err)
		}
	}
	big := make(Value, MaxValueBytes)
	for name, f := range map[string][]Field{
		"none": nil, "no name": {{"", nil}}, "long name": {{strings.Repeat("n", 257), nil}}, "twice": {{"a", nil}, {"a", nil}},
		"65537 bytes": {{"a", make(Value, MaxValueBytes+1)}}, "65537 bytes in all": {{"a", big}, {"b", Value{1}}}, "17": make([]Field, 17),
	} {
		if _, err := EncodeFrame(f); !errors.Is(err, ErrFrame) {
			t.Errorf("%s was encoded: %v", name, err)
		}
	}
}

// FuzzFrame: whatever is accepted encodes to the same bytes.
func FuzzFrame(f *testing.F) {
	for _, g := range golden {
		b, err := hex.DecodeString(g.hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(append(b[:len(b):len(b)], 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fields, err := DecodeFrame(b)
		if err != nil {
			return
		}
		again, err := EncodeFrame(fields)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("a frame changes: %v", err)
		}
	})
}
