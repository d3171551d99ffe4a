// SPDX-License-Identifier: Apache-2.0

package arming

import (
	"context"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
)

func TestNativeChecksFindWhatTheyPlant(t *testing.T) {
	for name, check := range map[string]func(context.Context, string) (finding, error){
		"tree hash": treeHash, "search": search, "access": access, "process": process, "memory": memory, "cpu": cpu, "reply": reply, "host socket": hostSocket,
	} {
		t.Run(name, func(t *testing.T) {
			f, err := check(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if len(f.missed) > 0 || len(f.alarms) > 0 {
				t.Errorf("missed %q, false alarms %q", f.missed, f.alarms)
			}
			total := int64(0)
			for _, n := range f.witness {
				total += n
			}
			if total == 0 {
				t.Error("nothing was witnessed, so the arming would count as not made")
			}
		})
	}
}

func TestAChangedFolderDisarmsTheTreeHash(t *testing.T) {
	// The check must be able to fail: without a folder there is nothing to find.
	if _, err := treeHash(t.Context(), "/nonexistent/hallmark"); err == nil {
		t.Error("a folder that does not exist is a good folder")
	}
}

func TestEachOracleIsArmedOnce(t *testing.T) {
	seen := map[conformance.Oracle]bool{}
	for _, a := range All() {
		if a.Arm == nil || seen[a.Oracle] {
			t.Errorf("oracle %s has no arming or two", a.Oracle)
		}
		seen[a.Oracle] = true
	}
	if len(seen) != 19 {
		t.Errorf("%d oracles are armed", len(seen))
	}
}
