// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/passphrase"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// usage is an error that is mended by typing something else.
func usage(cause error, remedy, format string, args ...any) error {
	return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf(format, args...), Cause: cause, Remedy: remedy}
}

// maxSeed is what every reader of JSON holds exactly.
const maxSeed = 1<<53 - 1

// read checks what was typed and reads the files that it names, before anything is started or
// built: nobody should wait a minute for a lab to learn of a slip.
func (p *Params) read(cohortFile string) error {
	var err error
	switch {
	case cohortFile == "" && p.TargetFile == "":
		return usage(nil, "name a cohort, for example --cohort ci/cohorts/runsc.yaml, or a target with --target FILE", "a run needs something to attack")
	case p.Out == "":
		return usage(nil, "name a folder, for example --out out/run", "a run needs an output folder")
	case p.Procs < 0 || p.Procs > conformance.MaxProcs:
		return usage(nil, fmt.Sprintf("use 1 to %d", conformance.MaxProcs), "--procs is %d", p.Procs)
	case p.Nonce != "" && (p.KeyFile == "" || !evidence.ValidNonce(p.Nonce)):
		return usage(nil, "use 16 to 128 letters, digits, dots, dashes and underscores, and sign with --key", "--nonce is %q", p.Nonce)
	case p.Seed < 0 || p.Seed > maxSeed:
		return usage(nil, fmt.Sprintf("use 1 to %d, or 0 to have one drawn", int64(maxSeed)), "--seed is %d", p.Seed)
	}
	if st, err := os.Stat(p.Out); err == nil && !st.IsDir() {
		return usage(nil, "name a folder: it is made when it is missing", "--out %s is a file", p.Out)
	}
	if _, err := p.Suite.Select(p.Tier, p.CaseIDs); err != nil {
		return usage(nil, "`hallmark cases` lists cases; a tier is smoke, full or serial", "%v", err)
	}
	if cohortFile != "" {
		if p.File, err = ReadCohortFile(cohortFile); err != nil {
			return usage(err, "see ci/cohorts for examples", "the cohort file cannot be used")
		}
	}
	profiles := profileNames(p.Suite.Catalogue())
	for _, name := range append(slices.Clone(p.Profiles), p.File.Profiles...) {
		if !slices.Contains(profiles, name) {
			return usage(nil, "use one of: "+strings.Join(profiles, ", "), "unknown profile %q", name)
		}
	}
	if p.TargetFile != "" {
		err = p.readTarget()
	} else {
		err = p.readReference()
	}
	if p.Procs == 0 {
		p.Procs = DefaultProcs()
	}
	return err
}

func profileNames(c evidence.Catalogue) []string {
	var out []string
	for _, profile := range c.Profiles {
		out = append(out, profile.Name)
	}
	return out
}

// readTarget refuses the flags that speak of the reference worker and its lab.
func (p *Params) readTarget() error {
	for _, f := range []struct {
		flag, remedy string
		given        bool
	}{
		{"--key", "leave it out: the cohort of another target is not measured here, so nothing is signed", p.KeyFile != ""},
		{"--mutation", "leave it out: without a signed bundle there is no place for it", p.MutationPath != ""},
		{"--workload", "name the images in the target file, by config digest", len(p.WorkloadNames) > 0},
		{"--bin", "leave it out: a target file names its programs itself", p.Binaries != ""},
	} {
		if f.given {
			return usage(nil, f.remedy, "--target and %s exclude each other", f.flag)
		}
	}
	file, err := ReadTargetFile(p.TargetFile)
	if err != nil {
		return targetError(err)
	}
	p.Target = &file
	if attached(file) {
		if p.Procs > 1 {
			return usage(nil, "leave --procs out", "the cases on a worker that is attached to run in one process: nobody could tell whose leftovers are whose")
		}
		p.Procs = 1
	}
	if _, ok := p.Suite.Drivers[file.Driver]; !ok {
		return targetError(fmt.Errorf("unknown driver %q: it is %s", file.Driver, strings.Join(slices.Sorted(maps.Keys(p.Suite.Drivers)), ", ")))
	}
	return nil
}

// attached reports whether the target is one running worker, which every process would share.
func attached(f TargetFile) bool {
	var c api.Config
	return f.Driver == driverAPI && strictjson.Unmarshal(f.Config, &c, strictjson.Default) == nil && c.Attach != nil
}

// readReference checks what a run of the reference worker in the lab is made of.
func (p *Params) readReference() error {
	if p.File.Driver != "" && p.File.Driver != driverAPI {
		return usage(nil, "`hallmark alternatives` runs the cohorts of other drivers, --target FILE describes one's own", "the cohort file is for the driver %s", p.File.Driver)
	}
	for _, name := range p.WorkloadNames {
		if name == string(image.Busybox) || name == string(image.Static) {
			continue
		}
		if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() {
			return usage(err, "use busybox, static, or the path of an image tarball such as `docker save` writes", "--workload %s is not a file", name)
		}
	}
	if err := binaries(p.Binaries, &api.Launch{}); err != nil {
		return usage(err, "`make build` makes them; --bin names their folder", "a binary is missing")
	}
	if p.KeyFile != "" {
		if err := p.openKey(context.Background()); err != nil {
			return err
		}
	}
	if p.MutationPath == "" {
		return nil
	}
	if p.KeyFile == "" {
		return usage(nil, "name a key with --key, or leave --mutation out", "--mutation goes into a signed bundle, and nothing is signed without a key")
	}
	return p.readMutation()
}

// openKey opens the signing key, once: a passphrase is asked for once.
func (p *Params) openKey(ctx context.Context) error {
	if p.signer != nil {
		return nil
	}
	switch {
	case p.KeyState != "" && !signing.IsKMS(p.KeyFile):
		return usage(nil, "leave --key-state out: the sequence of a key file lies beside it", "--key-state is for a key of a KMS")
	case signing.IsKMS(p.KeyFile) && p.KeyState == "":
		return usage(nil, "name a file with --key-state, and keep it as long as the key", "the sequence of a key of a KMS has no place")
	case p.KeyState == "":
		p.KeyState = p.KeyFile
	}
	s, err := signing.Open(ctx, p.KeyFile, passphrase.Ask)
	if err != nil {
		return keyError(err)
	}
	p.signer = s
	return nil
}

func keyError(err error) error {
	if errors.Is(err, signing.ErrPassphrase) {
		return usage(err, passphrase.ErrNone.Error(), "the signing key cannot be used")
	}
	return usage(err, "make one with `hallmark trust init` or `hallmark evidence keygen`", "the signing key cannot be used")
}

// readMutation reads the signed matrix. Whether its signature counts is for the gate to say; that
// it is of this program is said here, since a run takes minutes.
func (p *Params) readMutation() error {
	const remedy = "write it with `hallmark mutants`: out/mutants/mutation.json"
	b, err := os.ReadFile(p.MutationPath)
	if err != nil {
		return usage(err, remedy, "the mutation evidence cannot be read")
	}
	results, err := evidence.ReadMutation(b)
	if err != nil {
		return usage(err, remedy, "%s is no mutation evidence", p.MutationPath)
	}
	own, err := fileDigest("/proc/self/exe")
	if err != nil {
		return failed("the own executable cannot be read", err)
	}
	catalogue, err := p.Suite.CatalogueDigest()
	if err != nil {
		return failed("the catalogue is not valid", err)
	}
	if results.SuiteDigest != own || results.CatalogueDigest != catalogue {
		return usage(nil, "run `hallmark mutants` again with this very program, then this", "%s is of another build of this program", p.MutationPath)
	}
	p.MutationFile = b
	p.Mutation = &evidence.MutationEvidence{Digest: evidence.Digest(b), MutationResults: results}
	return nil
}

// runError says what a run that could not be done needs.
func runError(out string, err error) error {
	remedy := "read " + filepath.Join(out, "raw", "child.log") + "; `hallmark doctor` says what this machine lacks"
	switch {
	case errors.Is(err, conformance.ErrOutInUse):
		return usage(nil, "wait until it has ended, or name another folder with --out", "%v", conformance.ErrOutInUse)
	case errors.Is(err, os.ErrPermission):
		remedy = "run this as root, or name another folder with --out"
	}
	return usage(err, remedy, "the suite cannot run")
}
