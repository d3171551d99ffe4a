// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// measured is what real evidence about this site would name.
func (s *site) measured() (p evidence.Predicate) {
	s.Helper()
	digest := func(path string) string {
		d, err := worker.FileDigest(path)
		if err != nil {
			s.Fatal(err)
		}
		return d
	}
	eng, err := engine.New(s.Context(), engine.Config{
		Socket: s.cfg.Engine.Socket, Runtime: s.cfg.Engine.Runtime, CgroupParent: s.cfg.Engine.CgroupParent, Ceilings: s.cfg.Ceilings,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		s.Fatal(err)
	}
	defer eng.Close()
	d := daemon{cfg: s.cfg, engine: eng}
	desc, err := d.descriptor(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	p.Cohort.Descriptor = desc
	if p.Cohort.ID, err = evidence.CohortID(desc); err != nil {
		s.Fatal(err)
	}
	p.Images = []evidence.Image{{Name: "workload", Role: evidence.ImageWorkload, ConfigDigest: s.image.ConfigDigest, ManifestDigest: s.image.ManifestDigest}}
	p.Binaries = []evidence.Binary{
		{Name: "hallmark-quota", Role: evidence.BinaryQuota, Digest: digest(s.cfg.Helpers.Quota)},
		{Name: "sandbox-runtime", Role: evidence.BinarySandbox, Digest: s.cfg.SandboxBinary.Digest},
		{Name: "hallmark-supervisor", Role: evidence.BinarySupervisor, Digest: digest(s.cfg.Helpers.Supervisor)},
		{Name: "hallmark-worker", Role: evidence.BinaryWorker, Digest: digest(filepath.Join(s.bin, "hallmark-worker"))},
	}
	profile, err := os.ReadFile(filepath.Join(s.cfg.StateDir, profileFile))
	if err != nil {
		s.Fatal(err)
	}
	p.LaunchProfile = evidence.LaunchProfile{Digest: evidence.Digest(profile), Document: string(profile)}
	p.WorkerConfig.Digest = digest(filepath.Join(s.cfg.StateDir, securityFile))
	return p
}

// pins writes synthetic evidence about real digests, changed by alter, with a policy and pins
// that admit it. The evidence shows nothing; what is under test is the worker that reads it.
func (s *site) pins(facts evidence.Predicate, alter func(*evidence.Predicate)) *worker.Admission {
	s.Helper()
	must := func(err error) {
		s.Helper()
		if err != nil {
			s.Fatal(err)
		}
	}
	now := time.Now()
	w, err := evidencetest.New(now)
	must(err)
	p := &w.Statement.Predicate
	capabilities := p.Cohort.Capabilities
	p.Cohort, p.Images, p.Binaries = facts.Cohort, slices.Clone(facts.Images), slices.Clone(facts.Binaries)
	p.LaunchProfile, p.WorkerConfig, p.Cohort.Capabilities = facts.LaunchProfile, facts.WorkerConfig, capabilities
	if alter != nil {
		alter(p)
	}
	var images []string
	for _, m := range p.Images {
		images = append(images, m.ConfigDigest)
	}
	for i := range p.Cases {
		p.Cases[i].Images = images
	}
	p.Run.Arming.CohortID = p.Cohort.ID
	records, err := evidencetest.Reseal(&w.Statement, []int{2, 0, 3, 1})
	must(err)
	results := p.MutationEvidence.MutationResults
	results.CohortID = p.Cohort.ID
	mutation, err := evidence.SealMutation(results, w.Mutation)
	must(err)
	p.MutationEvidence = &evidence.MutationEvidence{Digest: evidence.Digest(mutation), MutationResults: results}
	p.Summary = evidence.Verdict(w.Catalogue, p.Cases, evidence.Need{
		Profiles: p.Profiles, Claims: p.Target.Claims, Images: images, Oracles: p.Run.Arming.Oracles, Features: p.Run.Arming.Features, Now: now,
	}).Summary()
	for i, b := range w.Blobs {
		switch b.Role {
		case evidence.ArtifactRecords:
			w.Blobs[i].Body = records
		case evidence.ArtifactMutation:
			w.Blobs[i].Body = mutation
		}
	}
	dir := s.TempDir()
	a := s.absentAdmission()
	a.Bundles = []string{filepath.Join(dir, "bundle")}
	_, err = evidence.WriteBundle(a.Bundles[0], w.Statement, w.Blobs, w.Evidence)
	must(err)
	trust, err := w.Trust()
	must(err)
	q, err := w.Question()
	must(err)
	q.Depth, q.Cohort = evidence.AuditDepth, p.Cohort.ID
	decision, err := evidence.DecideDir(q, a.Bundles[0])
	must(err)
	if !decision.Admitted {
		s.Fatalf("the synthetic evidence is not admitted: %s %s", decision.Reason, decision.Detail)
	}
	_, pins, err := evidence.MakePins(q.Policy, []evidence.Decision{decision}, w.Gate, now)
	must(err)
	must(os.WriteFile(a.Root, w.Root.PublicKey().PEM(), 0o600))
	must(os.WriteFile(a.Trust, trust, 0o600))
	must(os.WriteFile(a.Pins, pins, 0o600))
	return a
}

// qualify runs one sandbox in qualification mode, so that a launch profile is known.
func (s *site) qualify() evidence.Predicate {
	s.Helper()
	p := s.start()
	lease := s.create("ws")
	if err := s.client.Dispose(s.Context(), "ws", lease.SandboxID); err != nil {
		s.Fatal(err)
	}
	if err := s.client.Purge(s.Context(), "ws"); err != nil {
		s.Fatal(err)
	}
	s.stop(p)
	return s.measured()
}

// TestProduction: on pins for exactly these bytes the worker serves; with one of them changed
// it never listens.
func TestProduction(t *testing.T) {
	s := newSite(t)
	facts := s.qualify()
	s.cfg.Mode, s.cfg.Candidates = api.Production, nil
	first := filepath.Dir(s.cfg.StateDir)
	boots := 0
	fresh := func() { // each mode and each run of it has a directory of its own
		boots++
		s.cfg.StateDir = filepath.Join(first, fmt.Sprintf("production-%d", boots))
	}
	other := api.Digest([]byte("other bytes"))
	binary := func(role string) func(*evidence.Predicate) {
		return func(p *evidence.Predicate) {
			for i := range p.Binaries {
				if p.Binaries[i].Role == role {
					p.Binaries[i].Digest = other
				}
			}
		}
	}
	for name, alter := range map[string]func(*evidence.Predicate){
		"another worker":        binary(evidence.BinaryWorker),
		"another supervisor":    binary(evidence.BinarySupervisor),
		"another quota helper":  binary(evidence.BinaryQuota),
		"another configuration": func(p *evidence.Predicate) { p.WorkerConfig.Digest = other },
		"evidence of a cohort with another kernel": func(p *evidence.Predicate) {
			p.Cohort.Descriptor.Kernel.Release += "-other"
			var err error
			if p.Cohort.ID, err = evidence.CohortID(p.Cohort.Descriptor); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			fresh()
			s.cfg.Admission = s.pins(facts, alter)
			p := s.spawn()
			if code := s.wait(p); code != exitNegative || !strings.Contains(p.stderr.String(), string(api.Unqualified)) {
				t.Errorf("exit status %d\n%s", code, p.stderr)
			}
			if _, err := os.Lstat(s.cfg.Listen); err == nil {
				t.Error("it listened")
			}
		})
	}
	t.Run("serves what is pinned", func(t *testing.T) {
		fresh()
		s.cfg.Admission = s.pins(facts, nil)
		p := s.start()
		h, err := s.client.Health(t.Context())
		if err != nil || h.Mode != api.Production || h.CohortID != facts.Cohort.ID || len(h.EvidenceDigests) != 1 {
			t.Errorf("health %+v, %v", h, err)
		}
		lease := s.create("ws")
		res, err := s.client.Exec(t.Context(), "ws", lease.SandboxID, api.ExecRequest{InvocationID: "i", Argv: []string{"/bin/echo", "on pins"}, TimeoutMs: 20_000, MaxOutputBytes: 100})
		if err != nil || string(res.Stdout) != "on pins\n" {
			t.Errorf("exec: %+v, %v", res, err)
		}
		if err := s.client.Dispose(t.Context(), "ws", lease.SandboxID); err != nil {
			t.Error(err)
		}
		if err := s.client.Purge(context.Background(), "ws"); err != nil {
			t.Error(err)
		}
		good := s.image.ConfigDigest
		s.image.ConfigDigest = other
		_, err = s.client.Create(t.Context(), s.request("ws2"))
		codeIs(t, err, api.Unqualified)
		s.image.ConfigDigest = good
		if left := s.containers(); len(left) != 0 {
			t.Errorf("containers %v", left)
		}
		s.stop(p)
	})
	t.Run("notices a changed supervisor copy before a start", func(t *testing.T) {
		fresh()
		s.cfg.Admission = s.pins(facts, nil)
		p := s.start()
		for _, b := range facts.Binaries {
			if b.Role != evidence.BinarySupervisor {
				continue
			}
			path := filepath.Join(s.cfg.StateDir, "helpers", "sha256-"+strings.TrimPrefix(b.Digest, "sha256:"))
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o555); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.client.Create(t.Context(), s.request("ws3"))
		codeIs(t, err, api.Unqualified)
		if left := s.containers(); len(left) != 0 {
			t.Errorf("containers %v", left)
		}
		if err := s.client.Purge(t.Context(), "ws3"); err != nil {
			t.Error(err)
		}
		s.stop(p)
	})
}
