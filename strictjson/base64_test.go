// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"testing"
)

// encodes is the definition: what decodes, and encodes to the same text.
func encodes(s []byte) bool {
	b, err := base64.StdEncoding.Strict().AppendDecode(nil, s)
	return err == nil && bytes.Equal(base64.StdEncoding.AppendEncode(nil, b), s)
}

// Around the size of the parts in which a text is looked at, every text with one byte changed,
// added or taken away is judged as the definition judges it.
func TestCanonical64IsItsDefinition(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 4, 3070, 3071, 3072, 3073, 3074, 6144, 6145, 9000} {
		body := make([]byte, n)
		rand.Read(body)
		good := base64.StdEncoding.AppendEncode(nil, body)
		if !canonical64(good) {
			t.Fatalf("%d bytes: the encoding is refused", n)
		}
		for _, at := range []int{0, 1, 2, 3, 4093, 4094, 4095, 4096, 4097, 8191, 8192, len(good) - 3, len(good) - 2, len(good) - 1, len(good)} {
			if at < 0 || at > len(good) {
				continue
			}
			for _, c := range []byte("A=\n\r-/+ \x00") {
				texts := [][]byte{append(append(bytes.Clone(good[:at]), c), good[at:]...), append(append(bytes.Clone(good[:at]), c, c, c, c), good[at:]...), good[:at]}
				if at < len(good) {
					changed := bytes.Clone(good)
					changed[at] = c
					texts = append(texts, changed)
				}
				for _, s := range texts {
					if got, want := canonical64(s), encodes(s); got != want {
						t.Errorf("%d bytes, %q at %d: %v, want %v", n, c, at, got, want)
					}
				}
			}
		}
	}
}
