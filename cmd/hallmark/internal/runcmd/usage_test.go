// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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
	good := evidence.MutationResults{SuiteDigest: own, CatalogueDigest: catalogue, CohortID: "sha256:c", Rows: []evidence.MutationRow{{Mutant: "m01", Case: "FS-02", Expected: "r", Observed: "r"}}}
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
