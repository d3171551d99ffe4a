// SPDX-License-Identifier: Apache-2.0

package filedigest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

// Every way of changing a program's bytes is seen at once: in place with the same size, also when the
// old time of modification is set again, and by another file under the same name.
func TestChangesAreSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	put := func(body string) {
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("one")
	r := &Reader{}
	want := func(when, body string) {
		t.Helper()
		if got, err := r.File(path); err != nil || got != sum([]byte(body)) {
			t.Errorf("%s: %s, %v", when, got, err)
		}
	}
	want("at first", "one")
	put("two") // within the grain of file times
	want("at once", "two")
	time.Sleep(settle + 100*time.Millisecond)
	want("settled", "two")
	if len(r.kept) != 1 {
		t.Fatalf("%d digests are kept, so that nothing is tested", len(r.kept))
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	put("six")
	if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	want("in place, with the old time", "six")
	if err := os.WriteFile(path+".new", []byte("ten"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	want("replaced", "ten")
}

// What has not changed is not read again: a digest that is kept is the answer.
func TestUnchangedIsNotReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(settle + 100*time.Millisecond)
	r := &Reader{}
	if _, err := r.File(path); err != nil {
		t.Fatal(err)
	}
	for id := range r.kept {
		r.kept[id] = "kept"
	}
	if got, err := r.File(path); err != nil || got != "kept" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestOnlyRegularFiles(t *testing.T) {
	r := &Reader{}
	if _, err := r.File(t.TempDir()); err == nil {
		t.Error("a folder has a digest")
	}
	if _, err := r.File(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("nothing has a digest")
	}
}
