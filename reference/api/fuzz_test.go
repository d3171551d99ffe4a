// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// corpus asserts that a target has seeds: without them it would pass and say nothing.
func corpus(f *testing.F) {
	f.Helper()
	seeds, err := os.ReadDir(filepath.Join("testdata", "fuzz", f.Name()))
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
}

// stays says by other means than CheckPath what a path is: what path.Clean leaves as it is, and
// what does not begin where it could leave.
func stays(p []byte) bool {
	s := string(p)
	return !bytes.ContainsRune(p, 0) && path.Clean(s) == s && s != "." && s != ".." && !strings.HasPrefix(s, "../") && !strings.HasPrefix(s, "/")
}

// FuzzCheckPath: what is accepted stays below any root, byte for byte; all else is refused with
// the code of its kind, and nothing else is.
func FuzzCheckPath(f *testing.F) {
	corpus(f)
	f.Fuzz(func(t *testing.T, p []byte) {
		before := bytes.Clone(p)
		err := CheckPath(p)
		if !bytes.Equal(before, p) {
			t.Fatalf("%q was changed", before)
		}
		want := PathUnsafe
		switch {
		case len(p) == 0 || len(p) > MaxPathBytes:
			want = RequestInvalid
		case stays(p):
			want = ""
		}
		if codeOf(err) != want || (want == "") != (err == nil) {
			t.Fatalf("%.80q: got %v, want %q", p, err, want)
		}
		if err != nil {
			return
		}
		for _, root := range []string{"/", "/r", "/r/s"} {
			joined := filepath.Join(root, string(p))
			if joined != strings.TrimSuffix(root, "/")+"/"+string(p) {
				t.Errorf("%q below %s is %q", p, root, joined)
			}
		}
	})
}

// encodeFileQuery is the canonical form: names in order, a path as text where it is one.
func encodeFileQuery(c FileCall, write bool) string {
	q := url.Values{}
	if utf8.Valid(c.Path) {
		q.Set("path", string(c.Path))
	} else {
		q.Set("pathBytes", base64.StdEncoding.EncodeToString(c.Path))
	}
	if write {
		q.Set("mode", c.Mode)
	}
	if c.Executable {
		q.Set("executable", "true")
	}
	if c.Mode == WriteAppend {
		q.Set("expectedSize", strconv.FormatInt(c.ExpectedSize, 10))
	}
	return q.Encode()
}

// FuzzFileQuery: a query is refused, with one of two codes and without a call, or it says the
// same as its canonical form, which is accepted in the same direction.
func FuzzFileQuery(f *testing.F) {
	corpus(f)
	f.Fuzz(func(t *testing.T, raw string, write bool) {
		c, err := DecodeFileQuery(raw, write)
		if err != nil {
			if code := codeOf(err); code != RequestInvalid && code != PathUnsafe {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		if len(c.Path) > MaxPathBytes || !stays(c.Path) {
			t.Fatalf("%q gives the path %q", raw, c.Path)
		}
		known := map[string]bool{WriteCreate: write, WriteReplace: write, WriteAppend: write, "": !write}
		if !known[c.Mode] || c.ExpectedSize < 0 || c.Mode != WriteAppend && c.ExpectedSize != 0 || c.Executable && (!write || c.Mode == WriteAppend) {
			t.Fatalf("%q gives %+v", raw, c)
		}
		again, err := DecodeFileQuery(encodeFileQuery(c, write), write)
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("%q gives %+v, its canonical form %+v, %v", raw, c, again, err)
		}
	})
}
