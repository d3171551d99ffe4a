// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/conformance/target/targettest"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
)

// launched is a running lab with everything that a target needs on it.
type launched struct {
	lab    *lab.Lab
	bin    string // the programs, as a release builds them
	config []byte
	image  image.Built
	work   string // folder for the target's own
}

func launch(t testing.TB, kind image.Kind) launched {
	t.Helper()
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("this needs the lab: %v", err)
	}
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	s := launched{lab: l, bin: t.TempDir()}
	if err := build.All(t.Context(), build.Options{Source: repo, Out: s.bin}); err != nil {
		t.Fatal(err)
	}
	cohort, err := l.Cohort(t.Context(), lab.RuntimeRunsc, repo)
	if err != nil {
		t.Fatal(err)
	}
	if s.image, err = l.BuildImage(t.Context(), kind); err != nil {
		t.Fatal(err)
	}
	rt := l.Runtimes[lab.RuntimeRunsc]
	if s.config, err = json.Marshal(api.Config{
		Engine: &api.Engine{
			Socket: l.Socket, PidFile: filepath.Join(l.RunDir, "dockerd.pid"), Runtime: rt.Name, CgroupParent: l.CgroupParent,
			NetworkNamespace: l.NetNS, Network: l.Network, SandboxBinary: api.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
		},
		Launch: &api.Launch{
			Worker: filepath.Join(s.bin, "hallmark-worker"), Supervisor: filepath.Join(s.bin, "hallmark-supervisor"), Quota: filepath.Join(s.bin, "hallmark-quota"),
			Images:  []api.Image{{ConfigDigest: s.image.ConfigDigest, ManifestDigest: s.image.ManifestDigest}},
			Sockets: l.RunDir, CohortID: cohort.ID, Ceilings: api.Ceilings, ReserveBytes: api.ReserveBytes, ReserveInodes: api.ReserveInodes,
		},
	}); err != nil {
		t.Fatal(err)
	}
	parent, err := os.MkdirTemp(l.WorkDir, "api-test-") // which the lab sweeps, should this test be killed
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(parent); err != nil {
			t.Error(err)
		}
	})
	s.work = filepath.Join(parent, "work")
	if err := os.Mkdir(s.work, 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

// A launched worker keeps every promise of a target.
func TestContract(t *testing.T) {
	s := launch(t, image.Static)
	targettest.Run(t, func(t *testing.T) *target.Target {
		tg, err := api.Open(t.Context(), s.config, s.work)
		if err != nil {
			t.Fatal(err)
		}
		return tg
	}, targettest.Options{Image: s.image.ConfigDigest, Dir: s.work})
	os.Remove(s.work) // empty, or the contract says what is in it
}
