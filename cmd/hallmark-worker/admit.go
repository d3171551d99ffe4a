// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

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

// cohortWatch is how often the worker looks at its admission when nobody starts anything: for the
// log only, so that it need not be as often as starts demand.
const cohortWatch = 30 * time.Second

func (d *daemon) pinned(ctx context.Context) (admission.Gate, error) {
	document, err := d.cfg.SecurityDocument()
	if err != nil {
		return nil, err
	}
	a := d.cfg.Admission
	gate, err := admission.NewLive(ctx, admission.LiveConfig{
		PinnedConfig: admission.PinnedConfig{
			Root: a.Root, Trust: a.Trust, Pins: a.Pins, Bundles: a.Bundles, StateDir: a.StateDir,
			WorkerDigest: d.own, WorkerConfigDigest: api.Digest(document),
		},
		Programs: admission.Programs{Supervisor: d.supervisor.Path, Quota: d.quota.Path, SandboxBinary: d.cfg.SandboxBinary.Path},
		Digest:   d.digests.File, Cohort: d.measure, Host: cohort.HostID, Log: d.log,
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
	d.live = gate
	return gate, nil
}

// measure returns the cohort's id as it is now. The binary that the engine has registered must be
// the configured one.
func (d *daemon) measure(ctx context.Context) (string, error) {
	desc, err := d.descriptor(ctx)
	if err != nil {
		return "", err
	}
	if got := desc.Runtime.BinaryDigest; got != d.cfg.SandboxBinary.Digest {
		return "", api.E(api.Unqualified, fmt.Errorf("runtime %s is registered with the binary %s, configured %s", d.cfg.Engine.Runtime, got, d.cfg.SandboxBinary.Digest))
	}
	return evidence.CohortID(desc)
}

func (d *daemon) descriptor(ctx context.Context) (evidence.CohortDescriptor, error) {
	info, err := d.engine.Info(ctx)
	if err != nil {
		return evidence.CohortDescriptor{}, fmt.Errorf("measure cohort: %w", err)
	}
	backend, filesystem := d.cfg.Quota()
	return cohort.Measure(ctx, cohort.Config{
		Engine: cohort.EngineFacts{
			Pid: info.InstancePid, Version: info.Version, StorageDriver: info.StorageDriver, ImageStore: info.ImageStore,
			SecurityOptions: info.SecurityOptions, UserNamespaces: info.UsernsRemapped, DefaultRuntime: info.DefaultRuntime,
			SwapLimit: info.SwapLimit, RuntimePath: info.RuntimePath, RuntimeArgs: info.RuntimeArgs,
		},
		Quota:  evidence.CohortQuota{Backend: backend, Filesystem: filesystem},
		Digest: d.digests.File,
	})
}

// watchAdmission looks at a production worker's admission until end is called.
func (d *daemon) watchAdmission(ctx context.Context) (end func()) {
	if d.live == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.live.Watch(ctx, cohortWatch)
	}()
	return func() { cancel(); <-done }
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
