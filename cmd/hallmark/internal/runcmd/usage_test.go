// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// Mutation evidence is taken when it is of this program and of its catalogue, and else refused
// before the run.
func TestMutationEvidenceIsOfThisProgram(t *testing.T) {
	p := Params{Suite: conformance.Suite{Cases: cases.All(), Arming: cases.Arming()}, MutationPath: filepath.Join(t.TempDir(), "mutation.json")}
	own, err := fileDigest("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	catalogue, err := p.Suite.CatalogueDigest()
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.Throwaway()
	if err != nil {
		t.Fatal(err)
	}
	good := evidence.MutationResults{SuiteDigest: own, CatalogueDigest: catalogue, PatchesDigest: own, CohortID: own, Rows: []evidence.MutationRow{{Mutant: "m01", Case: "FS-02", Expected: "r", Observed: "r"}}}
	read := func(r evidence.MutationResults) error {
		file, err := evidence.SealMutation(r, key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.MutationPath, file, 0o600); err != nil {
			t.Fatal(err)
		}
		p.Mutation, p.MutationFile = nil, nil
		return p.readMutation()
	}
	if err := read(good); err != nil || p.Mutation.Rows[0] != good.Rows[0] || p.Mutation.Digest != evidence.Digest(p.MutationFile) {
		t.Errorf("%v, %+v", err, p.Mutation)
	}
	for name, spoil := range map[string]func(*evidence.MutationResults){
		"another suite":     func(r *evidence.MutationResults) { r.SuiteDigest = catalogue },
		"another catalogue": func(r *evidence.MutationResults) { r.CatalogueDigest = own },
	} {
		r := good
		spoil(&r)
		var refused *exit.Error
		if err := read(r); !errors.As(err, &refused) || refused.Status != exit.Failed || p.Mutation != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A folder for temporary files is everybody's: what somebody else put there is not used.
func TestStateOfARunIsInAFolderOfOnesOwn(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dir, err := runsFolder()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := runsFolder(); err != nil || again != dir {
		t.Errorf("the second time: %q, %v", again, err)
	}
	for _, tt := range []struct {
		name  string
		spoil func() error
	}{
		{"open to all", func() error { return os.Chmod(dir, 0o777) }},
		{"another user", func() error { return errors.Join(os.Chmod(dir, 0o711), os.Chown(dir, 65534, 65534)) }},
		{"a link", func() error { return errors.Join(os.Remove(dir), os.Symlink(t.TempDir(), dir)) }},
		{"a file", func() error { return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)) }},
	} {
		if err := tt.spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := runsFolder(); err == nil {
			t.Errorf("%s: used", tt.name)
		}
	}
}

// Of two runs into one folder the second is told what to do, and writes nothing.
func TestOutputFolderInUse(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	out := t.TempDir()
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	_, err = Run(t.Context(), Params{
		Suite:  conformance.Suite{Cases: cases.All(), Arming: cases.Arming()},
		Target: &TargetFile{Driver: driverExec, Workloads: []string{"sha256:" + strings.Repeat("0", 64)}, Config: []byte(`{"command":["/bin/true"]}`)},
		Tier:   conformance.Smoke, Tenant: "/proc/self/exe", Out: out,
	})
	var told *exit.Error
	if !errors.As(err, &told) || told.Status != exit.Failed || !strings.Contains(told.Sentence, "another run works on the output folder") || !strings.Contains(told.Remedy, "another folder with --out") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
		t.Errorf("it wrote %v, %v", left, err)
	}
}
