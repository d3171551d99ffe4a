// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// maxSize bounds the program in bytes: every sandbox maps it, and its reader has to be able to.
const maxSize = 6 << 20

// The program as a release builds it is one small static file, of the standard library and x/sys only; the
// last is a test of the root folder's, on arrows.
func TestOneSmallStaticProgram(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := build.All(t.Context(), build.Options{Source: repo, Out: dir, Only: []string{"hallmark-supervisor"}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "hallmark-supervisor")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", st.Size())
	if st.Size() >= maxSize {
		t.Errorf("%d bytes, want less than %d", st.Size(), maxSize)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it has a segment %s, so it needs a loader", p.Type)
		}
	}
	for _, name := range []string{".symtab", ".debug_info", ".zdebug_info"} {
		if f.Section(name) != nil {
			t.Errorf("it is not stripped: %s", name)
		}
	}
}
