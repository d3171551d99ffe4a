// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// module writes a module of test files, by path.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files["go.mod"] = "module m\n\ngo 1.26\n"
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	head = "package p\n\nimport \"testing\"\n\n"
	good = head + "func FuzzGood(f *testing.F) { f.Add(1); f.Fuzz(func(t *testing.T, i int) {}) }\n"
	bad  = head + "func FuzzBad(f *testing.F) { f.Add(1); f.Fuzz(func(t *testing.T, i int) { t.Fatal(i) }) }\n"
	out  = "//go:build never\n\n" + head + "func FuzzOut(f *testing.F) { f.Fuzz(func(t *testing.T, i int) {}) }\n"
)

func TestFind(t *testing.T) {
	root := module(t, map[string]string{
		"a/x_test.go": good + "\nfunc FuzzNot(t *testing.T) {}\n", "b/c/y_test.go": bad,
		"a/x.go": "package p\n\nfunc FuzzProduct(f *int) {}\n", "testdata/z_test.go": good, ".hidden/z_test.go": good,
		"nested/go.mod": "module n\n", "nested/z_test.go": good,
	})
	got, err := find(root)
	want := []target{{"./a", "FuzzGood"}, {"./b/c", "FuzzBad"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("found %v, %v", got, err)
	}
	// This module's own, so that the search does not run dry.
	if got, err = find("../.."); err != nil || len(got) < 10 || !slices.Contains(got, target{"./strictjson", "FuzzUnmarshal"}) {
		t.Errorf("found %v, %v", got, err)
	}
}

func TestFuzz(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		says  string // "" means success
	}{
		"good":         {map[string]string{"a/x_test.go": good}, ""},
		"finding":      {map[string]string{"a/x_test.go": good, "b/y_test.go": bad}, "./b FuzzBad: exit status"},
		"none":         {map[string]string{"a/x_test.go": head + "func TestX(*testing.T) {}\n"}, "no fuzz target was found"},
		"kept out":     {map[string]string{"a/x_test.go": out}, "./a FuzzOut: go test -c"},
		"does not end": {map[string]string{"a/x_test.go": head + "func FuzzSlow(f *testing.F) { f.Add(1); f.Fuzz(func(t *testing.T, i int) { if i != 1 { select {} } }) }\n"}, "./a FuzzSlow: an input did not end"},
		"does not run": {map[string]string{"a/x_test.go": head + "func FuzzIdle(f *testing.F) { f.Skip() }\n"}, "nothing was executed"},
	} {
		t.Run(name, func(t *testing.T) {
			err := fuzz(t.Context(), module(t, tt.files), time.Second, "")
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}
