// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The fleet of this repository is the cohorts on which the reference worker is expected to conform.
func TestFleetOfTheCohortFiles(t *testing.T) {
	got, err := Fleet([]string{"../../../../ci/cohorts"})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, c := range got {
		names = append(names, c.Name)
		if len(c.Profiles) == 0 || c.QuotaBackend == "" {
			t.Errorf("cohort %s: profiles %q, quota backend %q", c.Name, c.Profiles, c.QuotaBackend)
		}
	}
	if !slices.Contains(names, "worker-runsc") || slices.Contains(names, "runc-control") || slices.Contains(names, "worker-runsc-deb") || !slices.IsSorted(names) {
		t.Errorf("the fleet is %q", names)
	}
}

func TestFleetFiles(t *testing.T) {
	write := func(t *testing.T, name, body string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	vm := "name: vm\nprofiles: [vm-core, quota]\nverdict: conformant\nrequirements: {runtime: runsc, quotaBackend: prjquota, filesystem: xfs, capabilities: {sentry.openat2: ENOSYS}}\n"
	got, err := Fleet([]string{write(t, "vm.yaml", vm)})
	if err != nil || len(got) != 1 || got[0].Filesystem != "xfs" || got[0].Capabilities["sentry.openat2"] != "ENOSYS" || !slices.Equal(got[0].Profiles, []string{"quota", "vm-core"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for want, paths := range map[string][]string{
		"does not expect": {write(t, "bad.yaml", strings.Replace(vm, "conformant", "non-conformant", 1))},
		"are named vm":    {write(t, "a.yaml", vm), write(t, "b.yaml", vm)},
		"holds no cohort": {t.TempDir()},
		"no such file":    {filepath.Join(t.TempDir(), "none.yaml")},
		"not found in":    {write(t, "facts.yaml", vm+"kernel: 6.18\n")},
	} {
		if _, err := Fleet(paths); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
