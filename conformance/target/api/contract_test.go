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

// A launched worker keeps every promise of a target.
func TestContract(t *testing.T) {
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("this test needs the lab: %v", err)
	}
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := build.All(t.Context(), build.Options{Source: repo, Out: bin}); err != nil {
		t.Fatal(err)
	}
	cohort, err := l.Cohort(t.Context(), lab.RuntimeRunsc, repo)
	if err != nil {
		t.Fatal(err)
	}
	img, err := l.BuildImage(t.Context(), image.Static)
	if err != nil {
		t.Fatal(err)
	}
	rt := l.Runtimes[lab.RuntimeRunsc]
	config, err := json.Marshal(api.Config{
		Engine: &api.Engine{
			Socket: l.Socket, PidFile: filepath.Join(l.RunDir, "dockerd.pid"), Runtime: rt.Name, CgroupParent: l.CgroupParent,
			NetworkNamespace: l.NetNS, Network: l.Network, SandboxBinary: api.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
		},
		Launch: &api.Launch{
			Worker: filepath.Join(bin, "hallmark-worker"), Supervisor: filepath.Join(bin, "hallmark-supervisor"), Quota: filepath.Join(bin, "hallmark-quota"),
			Images:  []api.Image{{ConfigDigest: img.ConfigDigest, ManifestDigest: img.ManifestDigest}},
			Sockets: l.RunDir, CohortID: cohort.ID, Ceilings: api.Ceilings, ReserveBytes: api.ReserveBytes, ReserveInodes: api.ReserveInodes,
		},
	})
	if err != nil {
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
	work := filepath.Join(parent, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	targettest.Run(t, func(t *testing.T) *target.Target {
		tg, err := api.Open(t.Context(), config, work)
		if err != nil {
			t.Fatal(err)
		}
		return tg
	}, targettest.Options{Image: img.ConfigDigest, Dir: work})
	os.Remove(work) // empty, or the contract says what is in it
}
