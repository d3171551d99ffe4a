// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// FuzzPathRules: the rules of the wire and those of the tree are the same, so that neither relies on
// the other.
func FuzzPathRules(f *testing.F) {
	for _, p := range []string{"a/b", "", ".", "..", "a/../b", "/", "a//b", "a/", "a\x00", "\xff", "...", " "} {
		f.Add([]byte(p))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if wire, tree := api.CheckPath(p), checkPath(p); (wire == nil) != (tree == nil) {
			t.Fatalf("%.80q: the wire says %v, the tree %v", p, wire, tree)
		}
	})
}
