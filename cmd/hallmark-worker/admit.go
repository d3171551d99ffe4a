// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/cohort"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// admit makes the gate. In production mode everything that evidence is about is measured first:
// this executable, its configuration, the helpers, the registered sandbox binary and the cohort.
func (d *daemon) admit(ctx context.Context) error {
	if err := d.checkSandboxBinary(); err != nil {
		return needs(err, "the sandbox binary is not the one that the configuration names", "correct sandboxBinary, or restore the file")
	}
	var gate admission.Gate
	var err error
	if d.cfg.Mode == api.Qualification {
		gate, err = d.candidates()
	} else {
		gate, err = d.pinned(ctx)
	}
	if err != nil {
		return needs(err, "admission cannot be decided", "correct admission or candidates")
	}
	d.gate = &startGate{Gate: gate, supervisor: d.supervisor}
	return nil
}

func (d *daemon) checkSandboxBinary() error {
	got, err := worker.FileDigest(d.cfg.SandboxBinary.Path)
	if err != nil {
		return fmt.Errorf("read sandbox binary: %w", err)
	}
	if got != d.cfg.SandboxBinary.Digest {
		return api.E(api.Unqualified, fmt.Errorf("sandbox binary %s is %s, configured %s", d.cfg.SandboxBinary.Path, got, d.cfg.SandboxBinary.Digest))
	}
	return nil
}

func (d *daemon) candidates() (admission.Gate, error) {
	images := map[string]string{}
	for _, i := range d.cfg.Candidates.Images {
		images[i.ConfigDigest] = i.ManifestDigest
	}
	return admission.NewCandidates(admission.CandidatesConfig{
		Images: images, CohortID: d.cfg.Candidates.CohortID, SupervisorDigest: d.supervisor.Digest,
		QuotaDigest: d.quota.Digest, SandboxBinaryDigest: d.cfg.SandboxBinary.Digest,
	})
}

func (d *daemon) pinned(ctx context.Context) (admission.Gate, error) {
	id, registered, err := d.measure(ctx)
	if err != nil {
		return nil, err
	}
	if registered != d.cfg.SandboxBinary.Digest {
		return nil, api.E(api.Unqualified, fmt.Errorf("runtime %s is registered with the binary %s, configured %s", d.cfg.Engine.Runtime, registered, d.cfg.SandboxBinary.Digest))
	}
	document, err := d.cfg.SecurityDocument()
	if err != nil {
		return nil, err
	}
	a := d.cfg.Admission
	gate, err := admission.NewPinned(admission.PinnedConfig{
		Root: a.Root, Trust: a.Trust, Pins: a.Pins, Bundles: a.Bundles, StateDir: a.StateDir,
		CohortID: id, WorkerDigest: d.own, WorkerConfigDigest: api.Digest(document),
	})
	if err != nil {
		return nil, err
	}
	for _, img := range gate.Images() {
		start := admission.Start{ImageDigest: img, SupervisorDigest: d.supervisor.Digest, QuotaDigest: d.quota.Digest, SandboxBinaryDigest: d.cfg.SandboxBinary.Digest}
		if err := gate.Precheck(ctx, start); err != nil {
			return nil, err
		}
	}
	return gate, nil
}

// measure returns the cohort's id as it is now, and the digest of the registered binary.
func (d *daemon) measure(ctx context.Context) (id, registered string, err error) {
	desc, err := d.descriptor(ctx)
	if err != nil {
		return "", "", err
	}
	id, err = evidence.CohortID(desc)
	return id, desc.Runtime.BinaryDigest, err
}

func (d *daemon) descriptor(ctx context.Context) (evidence.CohortDescriptor, error) {
	info, err := d.engine.Info(ctx)
	if err != nil {
		return evidence.CohortDescriptor{}, fmt.Errorf("measure cohort: %w", err)
	}
	return cohort.Measure(ctx, cohort.Config{
		Engine: cohort.EngineFacts{
			Pid: info.InstancePid, Version: info.Version, StorageDriver: info.StorageDriver, ImageStore: info.ImageStore,
			SecurityOptions: info.SecurityOptions, UserNamespaces: info.UsernsRemapped, DefaultRuntime: info.DefaultRuntime,
			SwapLimit: info.SwapLimit, RuntimePath: info.RuntimePath, RuntimeArgs: info.RuntimeArgs,
		},
		Quota: evidence.CohortQuota{Backend: worker.QuotaBackend, Filesystem: worker.QuotaFilesystem},
	})
}

// startGate adds to any gate that the supervisor's copy is read again before every start: the
// digest that is checked must be the digest of what is mounted.
type startGate struct {
	admission.Gate
	supervisor worker.Installed
}

// Admit implements [admission.Gate].
func (g *startGate) Admit(ctx context.Context, s admission.Start) error {
	if err := g.supervisor.Verify(); err != nil {
		return api.E(api.Unqualified, err)
	}
	return g.Gate.Admit(ctx, s)
}
