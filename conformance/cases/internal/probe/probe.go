// SPDX-License-Identifier: Apache-2.0

// Package probe looks whether a target has the features of the catalogue, whatever it claims.
//
// It owns one look per feature, from outside where there is an outside to look from, and one
// sandbox that the looks of a run share. It never judges the target: that a claimed feature is
// absent is for the verdict to say. It is no attack either: a feature that is there may still be
// broken, which is what the cases find out.
package probe

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// All lists the looks. The last one ends the runtime and starts it again.
func All() []conformance.Probe {
	b := &bench{}
	return []conformance.Probe{
		{Feature: conformance.FeatureFiles, Look: b.files},
		{Feature: conformance.FeatureExec, Look: b.exec},
		{Feature: conformance.FeatureOpenat2, Look: b.openat2},
		{Feature: conformance.FeatureQuota, Look: b.quota},
		{Feature: conformance.FeatureNoNetwork, Look: b.noNetwork},
		{Feature: conformance.FeatureSupervisor, Look: b.supervisor},
		{Feature: conformance.FeatureProtocol, Look: b.protocol},
		{Feature: conformance.FeatureAdmission, Look: b.admission},
		{Feature: conformance.FeatureCreds, Look: b.credentials},
		{Feature: conformance.FeatureReconcile, Look: b.reconcile},
	}
}

const (
	present = conformance.Present
	absent  = conformance.Absent
	unknown = conformance.Unknown
)

// bench is the sandbox that the looks of one run share.
type bench struct {
	t       *conformance.T // of the run that the rest is of
	sandbox target.Sandbox
	refused error
	host    target.Container // zero when nothing is seen from outside
	program string           // "" until it was written
}

// open makes the sandbox at the first call of a run. A create that failed is not tried again.
func (b *bench) open(ctx context.Context, t *conformance.T) error {
	if b.t == t {
		return b.refused
	}
	*b = bench{t: t}
	if b.sandbox, b.refused = t.TrySandbox(ctx, target.Spec{}); b.refused != nil {
		b.refused = fmt.Errorf("create a sandbox: %w", b.refused)
		return b.refused
	}
	// A target that cannot be looked at from outside is one all the same.
	if c, err := attack.Container(ctx, t, b.sandbox); err == nil {
		b.host = c
	}
	return nil
}

// run opens the sandbox and runs the attack program in it.
func (b *bench) run(ctx context.Context, t *conformance.T, args ...string) (attack.Outcome, error) {
	if err := b.open(ctx, t); err != nil {
		return attack.Outcome{}, err
	}
	if b.program == "" {
		b.program = t.Tenant(ctx, b.sandbox)
	}
	o := attack.Run(ctx, b.sandbox, target.Command{Argv: attack.Command(b.program, args...)})
	return o, o.Trouble()
}

// plain is the answer about files and exec when there is no sandbox: a refusal that the target
// names is one.
func plain(err error) (conformance.Presence, string, error) {
	if target.CodeOf(err) != "" {
		return absent, "a plain sandbox is refused with " + target.CodeOf(err), nil
	}
	return unknown, "", err
}

// without is the answer about the other features then.
func without(err error) (conformance.Presence, string, error) {
	if target.CodeOf(err) != "" {
		return unknown, "there is no sandbox to look at: a plain one is refused with " + target.CodeOf(err), nil
	}
	return unknown, "", err
}

const content = "written through the file API\n"

// files writes through the target and reads past it.
func (b *bench) files(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if err := b.open(ctx, t); err != nil {
		return plain(err)
	}
	if err := b.sandbox.Files().Write(ctx, "probe-files", []byte(content)); target.CodeOf(err) != "" {
		return absent, "a plain write is refused with " + target.CodeOf(err), nil
	} else if err != nil {
		return unknown, "", err
	}
	var got []byte
	var err error
	where := "on the host"
	if b.host.Workspace != "" {
		got, err = os.ReadFile(filepath.Join(b.host.Workspace, "probe-files"))
	} else {
		where = "by the target itself"
		got, err = b.sandbox.Files().Read(ctx, "probe-files")
	}
	if err != nil || !bytes.Equal(got, []byte(content)) {
		return absent, fmt.Sprintf("what was written is not to be read %s: %d bytes, %v", where, len(got), err), nil
	}
	return present, "what was written is read " + where, nil
}

// exec looks for the effect of a command.
func (b *bench) exec(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if err := b.open(ctx, t); err != nil {
		return plain(err)
	}
	o, err := b.run(ctx, t, "effect", "-file", "probe-exec")
	if err != nil {
		return unknown, "", err
	}
	var missing error
	where := "on the host"
	if b.host.Workspace != "" {
		_, missing = os.Lstat(filepath.Join(b.host.Workspace, "probe-exec"))
	} else {
		where = "by the target itself"
		_, missing = b.sandbox.Files().Stat(ctx, "probe-exec")
	}
	if missing != nil {
		return absent, fmt.Sprintf("a command ended with exit code %d %s and left nothing that is seen %s: %.200s", o.Result.ExitCode, o.Code, where, o.Result.Stderr), nil
	}
	return present, "a command's effect is seen " + where, nil
}

// openat2 lets the tenant try the call: only its kernel knows.
func (b *bench) openat2(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if err := b.open(ctx, t); err != nil {
		return without(err)
	}
	o, err := b.run(ctx, t, "openat2")
	if err != nil {
		return unknown, "", err
	}
	switch answer := o.Report.Facts["openat2"]; answer {
	case "ok":
		return present, "openat2(2) works in the sandbox", nil
	case "ENOSYS", "EPERM": // not there, or taken away by a filter
		return absent, "openat2(2) in the sandbox ends with " + answer, nil
	default:
		return unknown, fmt.Sprintf("openat2(2) in the sandbox ends with %q; exit code %d", answer, o.Result.ExitCode), nil
	}
}
