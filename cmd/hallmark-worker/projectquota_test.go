// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// A worker that is to bound workspaces by project quota does not start where the kernel enforces none: it
// says so, makes nothing, and takes no other bound instead.
func TestNoStartWithoutEnforcedQuota(t *testing.T) {
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if st, err := project.Ask(dir); err == nil && st.Enforced {
		t.Fatalf("%s enforces project quota; give the tests another TMPDIR", dir)
	}
	helper, err := worker.InstallHelper(filepath.Join(t.TempDir(), "helpers"), filepath.Join(bin, "hallmark-quota"))
	if err != nil {
		t.Fatal(err)
	}
	for _, filesystem := range []string{"ext4", "xfs"} {
		d := &daemon{quota: helper, log: slog.New(slog.DiscardHandler)}
		d.cfg.Workspaces = worker.Workspaces{
			Dir: dir + "/workspaces", ProjectQuota: &worker.ProjectQuota{Filesystem: filesystem, FirstID: project.MinProjectID, LastID: project.MinProjectID + 9},
		}
		w, err := d.bounded()
		var says bytes.Buffer
		status := report(&says, err)
		if w != nil || status != exitFailed || !strings.Contains(says.String(), "project quota is not enforced where workspaces are") || !strings.Contains(says.String(), "prjquota") {
			t.Errorf("%s: %v, status %d, %s", filesystem, w, status, &says)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
