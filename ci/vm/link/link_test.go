// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

func TestFramesComeBackAsTheyWent(t *testing.T) {
	var wire bytes.Buffer
	c := link.New(&wire)
	long := bytes.Repeat([]byte("x"), link.MaxFrame+7)
	if n, err := c.Stream(link.Stdout).Write(long); n != len(long) || err != nil {
		t.Fatal(n, err)
	}
	if err := c.Write(link.Beat, nil); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for range 2 {
		k, body, err := c.Read()
		if err != nil || k != link.Stdout {
			t.Fatal(k, err)
		}
		got = append(got, body...)
	}
	if !bytes.Equal(got, long) {
		t.Errorf("%d bytes came of %d", len(got), len(long))
	}
	if k, body, err := c.Read(); k != link.Beat || len(body) != 0 || err != nil {
		t.Error(k, body, err)
	}
	if _, _, err := c.Read(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A frame that is too long or of no kind is refused on its head alone: nothing of it is kept or waited for.
func TestForeignFramesAreRefused(t *testing.T) {
	for name, head := range map[string][]byte{
		"too long": {byte(link.Data), 0, 1, 0, 1}, "longest": {byte(link.Data), 0xff, 0xff, 0xff, 0xff}, "kind 0": {0, 0, 0, 0, 0}, "later kind": {byte(link.Exit) + 1, 0, 0, 0, 0},
	} {
		if _, _, err := link.New(bytes.NewBuffer(head)).Read(); !errors.Is(err, link.ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := link.New(new(bytes.Buffer)).Write(link.Data, make([]byte, link.MaxFrame+1)); !errors.Is(err, link.ErrFrame) {
		t.Error(err)
	}
	if _, _, err := link.New(bytes.NewBuffer([]byte{byte(link.Data), 0, 0, 0, 2, 'x'})).Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func TestPackAndUnpack(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	if err := os.MkdirAll(filepath.Join(from, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"a/program": 0o755, "a/b/data": 0o600} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(from, "a", "link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(link.Pack(w, filepath.Join(from, "a"), "renamed"), link.Pack(w, filepath.Join(from, "a", "program"), ""), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := link.Unpack(&b, to, 1000); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"renamed/program": 0o755, "renamed/b/data": 0o600, "program": 0o755} {
		st, err := os.Stat(filepath.Join(to, name))
		if err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(to, "renamed", "link")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a symlink travelled: %v", err)
	}
}

// What comes out of a guest is written below its folder, is bounded, and is nothing but folders and files.
func TestUnpackIsBounded(t *testing.T) {
	file := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 4, Mode: 0o644}
	}
	for name, tt := range map[string]struct {
		entries []*tar.Header
		limit   int64
		want    string
	}{
		"parent":            {[]*tar.Header{file("../stray")}, 100, "escapes"},
		"deep parent":       {[]*tar.Header{file("a/../../stray")}, 100, "escapes"},
		"absolute":          {[]*tar.Header{file("/tmp/stray")}, 100, "escapes"},
		"symlink":           {[]*tar.Header{{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "/etc"}}, 100, "neither a folder nor a regular file"},
		"hard link":         {[]*tar.Header{{Typeflag: tar.TypeLink, Name: "l", Linkname: "/etc/passwd"}}, 100, "neither"},
		"device":            {[]*tar.Header{{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1, Devminor: 3}}, 100, "neither"},
		"through a symlink": {[]*tar.Header{file("out/stray")}, 100, "escapes"},
		"too much":          {[]*tar.Header{file("a"), file("b"), file("c")}, 11, "more than it may"},
	} {
		t.Run(name, func(t *testing.T) {
			outside, dir := t.TempDir(), t.TempDir()
			if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range tt.entries {
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
				if h.Size > 0 {
					if _, err := w.Write([]byte("evil")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := link.Unpack(&b, dir, tt.limit); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Errorf("outside: %v %v", left, err)
			}
		})
	}
}
