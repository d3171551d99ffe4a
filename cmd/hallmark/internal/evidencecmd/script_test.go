// SPDX-License-Identifier: Apache-2.0

package evidencecmd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/evidencecmd"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/passphrase"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// TestMain gives the scripts three programs: hallmark with the commands of this package, and
// world and fleet, which write synthetic evidence for a directory of `hallmark trust init`.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hallmark": hallmark, "world": world, "fleet": fleet})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status, "keydigest": keydigest, "firstword": firstWord}})
}

// status N CMD... runs a command that must end with exit status N; plain exec knows only failure.
func status(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if err != nil || neg {
		ts.Fatalf("usage: status N command...")
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// keydigest NAME FILE sets the variable NAME to the digest of a public key file.
func keydigest(ts *testscript.TestScript, _ bool, args []string) {
	keys, err := evidence.ParsePublicKeysPEM([]byte(ts.ReadFile(args[1])))
	ts.Check(err)
	ts.Setenv(args[0], keys[0].Digest())
}

// firstword NAME FILE sets the variable NAME to what FILE begins with.
func firstWord(ts *testscript.TestScript, _ bool, args []string) {
	words := strings.Fields(ts.ReadFile(args[1]))
	if len(words) == 0 {
		ts.Fatalf("%s is empty", args[1])
	}
	ts.Setenv(args[0], words[0])
}

func synthetic() *evidencetest.World {
	w, err := evidencetest.New(time.Now())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exit.Failed)
	}
	return w
}

func hallmark() {
	root := &cobra.Command{Use: "hallmark", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(evidencecmd.New(func() evidence.Catalogue { return synthetic().Catalogue }, []string{"quota"}, runcmd.Fleet)...)
	err := root.Execute()
	if err == nil {
		return
	}
	var typed *exit.Error
	if !errors.As(err, &typed) {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(exit.Failed)
	}
	fmt.Fprintf(os.Stderr, "error: %v.\nremedy: %s.\n", typed, typed.Remedy)
	os.Exit(typed.Status)
}

// world DIR KEY writes a conformant bundle into DIR, signed with KEY as issuer "ci.example".
// With the third argument "failed" the first case has failed; "credentials" claims that profile.
func world() {
	w := synthetic()
	s, err := signing.Open(context.Background(), os.Args[2], passphrase.Ask)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exit.Failed)
	}
	p := &w.Statement.Predicate
	m := p.MutationEvidence.MutationResults
	file, err := evidence.SealMutation(m, s)
	if err == nil {
		p.MutationEvidence.Digest = evidence.Digest(file)
		for i := range w.Blobs {
			if w.Blobs[i].Role == evidence.ArtifactMutation {
				w.Blobs[i].Body = file
			}
		}
		// Keys of trust init are valid from a minute before they were made.
		p.Run.StartedAt, p.Run.FinishedAt = evidence.At(time.Now()), evidence.At(time.Now())
		p.Run.Arming.StartedAt = p.Run.StartedAt
		p.Validity = evidence.Validity{NotBefore: p.Run.StartedAt, NotAfter: evidence.At(time.Now().Add(time.Hour))}
		if len(os.Args) > 3 && os.Args[3] == "credentials" {
			p.Profiles = []string{"credentials"}
			p.Summary = evidencetest.Summary(w.Catalogue, *p)
		}
		if len(os.Args) > 3 && os.Args[3] == "failed" {
			p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusFail, "escaped"
			w.Blobs[1].Body = evidencetest.GinkgoReport(p.Cases)
			if p.Suite.Ginkgo, err = evidence.ReportGinkgo(w.Blobs[1].Body, "2.34.0"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(exit.Failed)
			}
			p.Summary = evidencetest.Summary(w.Catalogue, *p)
		}
		w.Blobs[0].Body, err = evidencetest.Reseal(&w.Statement, []int{0, 1, 2, 3})
	}
	if err == nil {
		_, err = evidence.WriteBundle(os.Args[1], w.Statement, w.Blobs, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exit.Failed)
	}
}

// fleet DIR KEY writes evidence of the same images on two cohorts into DIR/host/bundle and DIR/vm/bundle,
// the second with workspaces on XFS, signed with KEY as issuer "ci.example". With the third argument
// "one" the second is about one of the two images, with "failed" its first case has failed.
func fleet() {
	w := synthetic()
	err := func() error {
		s, err := signing.Open(context.Background(), os.Args[2], passphrase.Ask)
		if err != nil {
			return err
		}
		w.Evidence, w.Mutation = s, s
		host, err := w.Another(func(p *evidence.Predicate) {
			p.Run.StartedAt, p.Run.FinishedAt = evidence.At(time.Now()), evidence.At(time.Now())
			p.Validity = evidence.Validity{NotBefore: p.Run.StartedAt, NotAfter: evidence.At(time.Now().Add(time.Hour))}
		})
		if err != nil {
			return err
		}
		vm, err := host.Another(func(p *evidence.Predicate) {
			p.Cohort.Descriptor.Quota = evidence.CohortQuota{Backend: "prjquota", Filesystem: "xfs"}
			switch {
			case len(os.Args) > 3 && os.Args[3] == "one":
				p.Images = p.Images[:1]
				for i := range p.Cases {
					p.Cases[i].Images = []string{p.Images[0].ConfigDigest}
				}
			case len(os.Args) > 3 && os.Args[3] == "failed":
				p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusFail, "escaped"
			}
		})
		if err != nil {
			return err
		}
		for name, run := range map[string]*evidencetest.World{"host": host, "vm": vm} {
			b, err := run.Bundle()
			if err == nil {
				err = b.Write(filepath.Join(os.Args[1], name, "bundle"))
			}
			if err != nil {
				return err
			}
		}
		fmt.Println(host.Statement.Predicate.Images[0].ConfigDigest)
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exit.Failed)
	}
}

func TestTrustInitMakesAnAdmittingPolicy(t *testing.T) {
	dir := t.TempDir()
	w := synthetic()
	p, err := gate.Init(gate.InitConfig{
		Dir: dir, Identity: "ci.example", Role: evidence.RoleCI, Profiles: []string{"quota"},
		Catalogue: w.Catalogue, Mutation: evidence.MutationRequired, Lifetime: time.Hour, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := evidence.CheckPolicy(p); err != nil || len(p.Keys) != 2 {
		t.Errorf("%d keys, %v", len(p.Keys), err)
	}
	text, err := strictjson.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var again evidence.TrustPolicy
	if err := strictjson.Unmarshal(text, &again, strictjson.Limits{}); err != nil {
		t.Errorf("what `trust show --json` prints is not what `trust sign` reads: %v", err)
	}
}
