// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The four events of an exchange as they may come: with much of other directories between them, in one
// directory or in two, and with one of the two not watched. Only what tells that there may be two names
// now owes an Overflow.
func TestExchangesAreFoundAmongOtherEvents(t *testing.T) {
	const from, to, other = unix.IN_MOVED_FROM, unix.IN_MOVED_TO, unix.IN_CREATE
	ev := func(dir int32, mask, cookie uint32, name string) event { return event{dir, mask, cookie, name} }
	noise := func(events ...event) []event { // 500 events of a third directory behind each
		var out []event
		for _, e := range events {
			out = append(out, e)
			for range 500 {
				out = append(out, ev(3, other, 0, "x"))
			}
		}
		return out
	}
	const nowhere = 9 // not watched
	tests := []struct {
		name   string
		events []event
		owed   bool
	}{
		{"in one directory", []event{ev(1, from, 1, "a"), ev(1, to, 1, "b"), ev(1, from, 2, "b"), ev(1, to, 2, "a")}, true},
		{"between two", []event{ev(1, from, 1, "a"), ev(2, to, 1, "b"), ev(2, from, 2, "b"), ev(1, to, 2, "a")}, true},
		{"in one, far apart", noise(ev(1, from, 1, "a"), ev(1, to, 1, "b"), ev(1, from, 2, "b"), ev(1, to, 2, "a")), true},
		{"between two, far apart", noise(ev(1, from, 1, "a"), ev(2, to, 1, "b"), ev(2, from, 2, "b"), ev(1, to, 2, "a")), true},
		{"the first one's directory is not watched", []event{ev(nowhere, from, 1, "a"), ev(2, to, 1, "b"), ev(2, from, 2, "b"), ev(nowhere, to, 2, "a")}, true},
		{"the second one's is not", []event{ev(1, from, 1, "a"), ev(nowhere, to, 1, "b"), ev(nowhere, from, 2, "b"), ev(1, to, 2, "a")}, false}, // a left and came
		{"a move", []event{ev(1, from, 1, "a"), ev(2, to, 1, "b")}, false},
		{"on to a third name", []event{ev(1, from, 1, "a"), ev(1, to, 1, "b"), ev(1, from, 2, "b"), ev(1, to, 2, "c")}, false},
		{"back, after something else", []event{ev(1, from, 1, "a"), ev(1, to, 1, "b"), ev(1, other, 0, "c"), ev(1, from, 2, "b"), ev(1, to, 2, "a")}, false},
		{"in place of another", []event{ev(1, from, 1, "tmp"), ev(1, to, 1, "a"), ev(1, other, 0, "tmp"), ev(1, from, 2, "tmp"), ev(1, to, 2, "a")}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree, _, _ := newTree(t)
			v, th := openView(t, tree)
			// Descriptors that the kernel does not give here, so that only these events are about them.
			v.nodes = map[int32]*node{}
			for wd, name := range map[int32]string{1: "one", 2: "two", 3: "three"} {
				n := &node{wd: wd, name: name, parent: v.root}
				n.remember(ev(wd, other, 0, "earlier"))
				v.nodes[wd] = n
			}
			v.events, v.next = tt.events, 0
			for v.next < len(v.events) {
				e := v.events[v.next]
				v.next++
				if err := th.do(func() error { return v.handle(e) }); err != nil {
					t.Fatal(err)
				}
			}
			if v.owed != tt.owed {
				t.Errorf("an Overflow is owed: %v", v.owed)
			}
		})
	}
}
