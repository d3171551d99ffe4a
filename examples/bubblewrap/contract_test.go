// SPDX-License-Identifier: Apache-2.0

package bubblewrap_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/execdriver"
	"github.com/hallmark-sandbox/hallmark/conformance/target/targettest"
)

func TestContract(t *testing.T) {
	dir, err := os.MkdirTemp("", "hallmark-bubblewrap-") // the tenant must be able to walk to its workspace
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	config, _ := json.Marshal(map[string]any{"command": []string{"python3", "bubblewrap.py", os.Getenv("HALLMARK_BWRAP")}})
	work := filepath.Join(dir, "work")
	targettest.Run(t, func(t *testing.T) *target.Target {
		tg, err := execdriver.Open(t.Context(), config, work)
		if err != nil {
			t.Fatal(err)
		}
		return tg
	}, targettest.Options{Dir: work})
}
