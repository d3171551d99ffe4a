// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"reflect"
	"testing"
)

func TestOthersScopes(t *testing.T) {
	dir := t.TempDir()
	mk := func(n int, s scope) *bench { return &bench{proc: n, procs: 5, shared: dir, scope: s} }
	own := mk(1, scope{"/lab/a", "/state/p1"})
	for _, b := range []*bench{own, mk(2, scope{"/lab/b", "/state/p2"}), mk(3, scope{"/lab", "/state/p3"}), mk(4, scope{"", "/state/p4"})} {
		if err := b.publishScope(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(scopeFile(dir, 5), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The third one's parent holds the first one's: it must excuse nothing.
	want := []scope{{"/lab/b", "/state/p2"}, {"", "/state/p3"}, {"", "/state/p4"}}
	if got := own.othersScopes(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := (&bench{proc: 1, procs: 1, scope: own.scope}).othersScopes(); len(got) != 0 {
		t.Errorf("a run of one process has others: %+v", got)
	}
	// Of runs beside each other, each knows what the others told, and nothing twice.
	beside := t.TempDir()
	first := &bench{proc: 1, procs: 2, shared: t.TempDir(), run: "aa", beside: beside, scope: scope{"/lab/a", "/state/a"}}
	again := &bench{proc: 2, procs: 2, shared: first.shared, run: "aa", beside: beside, scope: scope{"/lab/b", "/state/b"}}
	second := &bench{proc: 1, procs: 1, run: "bb", beside: beside, scope: scope{"/lab/c", "/state/c"}}
	for _, b := range []*bench{first, again, second} {
		if err := b.publishScope(); err != nil {
			t.Fatal(err)
		}
	}
	if got := first.besideScopes(); !reflect.DeepEqual(got, []scope{second.scope}) {
		t.Errorf("beside the first run: %+v", got)
	}
	if got := second.besideScopes(); !reflect.DeepEqual(got, []scope{first.scope, again.scope}) {
		t.Errorf("beside the second run: %+v", got)
	}
	if got := own.besideScopes(); got != nil {
		t.Errorf("beside a run by itself: %+v", got)
	}
	for _, tt := range []struct {
		path, dir string
		want      bool
	}{
		{"/lab/a", "/lab/a", true}, {"/lab/a/x", "/lab/a", true}, {"/lab/ab", "/lab/a", false}, {"/lab", "/lab/a", false},
		{"/lab", "/", false}, {"/lab", "", false}, {"", "", false},
	} {
		if got := below(tt.path, tt.dir); got != tt.want {
			t.Errorf("below(%q, %q) is %v", tt.path, tt.dir, got)
		}
	}
}
