// SPDX-License-Identifier: Apache-2.0

package ke

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// KE06 asks whose kernel answers.
var KE06 = conformance.Case{
	ID: "KE-06", Revision: 3, Title: "Runtime identity",
	Requirement: "The kernel that a tenant talks to is not the host's, and the host-side process is the pinned sandbox binary.",
	Threat:      "What is called a sandbox is a process on the host's kernel.",
	Attack:      "uname, /proc/version, the boot id and the kernel log are read inside.",
	Witness:     "Facts that the inside reported and that were compared with the host's (at least 3: release, version and /proc/version; a sandbox may have no boot id).",
	Oracle:      "The same facts of the host, compared there; sha256 of /proc/<State.Pid>/exe on the host, against the binary that the target names; one that names none is judged by its kernel alone and cannot pass. The kernel log and the vdso are recorded only.",
	Precedent:   "sandboxd#69; am-i-isolated#34",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 30 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Oracles:  []conformance.Oracle{conformance.OracleProcess},
	Kills:    []conformance.Kill{{Mutant: "m22", Reason: "host-kernel-visible"}, {Mutant: "runc", Reason: "host-kernel-visible"}},
	Run:      runKE06,
}

func runKE06(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	host, err := hostIdentity()
	if err != nil {
		return err
	}

	// Attack.
	o, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "identity")})
	if err != nil {
		return err
	}

	// Witness.
	t.NeedWitness("facts-compared", 3)
	attack.Witness(t, "inside", o.Report)
	t.Observe("inside-release", o.Report.Facts["release"])
	t.Observe("inside-version", o.Report.Facts["proc-version"])

	// Verdict.
	for _, name := range slices.Sorted(maps.Keys(host)) {
		outside := host[name]
		inside, reported := o.Report.Facts[name]
		if !reported || inside == "" {
			t.Observe("not-reported "+name, o.Report.Errno[name])
			continue
		}
		t.Witness("facts-compared", 1)
		if inside == outside {
			t.Fail("host-kernel-visible", "%s inside equals the host's: %s", name, inside)
		}
	}
	// A target that names no sandbox binary is judged by its kernel alone, and cannot pass.
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	_, pinned, err := t.Target().Observer.SandboxBinary()
	if err != nil {
		return err
	}
	digest, err := oracle.ExeDigest(c.Pid)
	if err != nil {
		return err
	}
	t.Observe("process", digest)
	if digest != pinned {
		t.Fail("sandbox-binary-differs", "the host process is %s, pinned is %s", digest, pinned)
	}
	return nil
}

// hostIdentity has the host's values under the names that the attack uses.
func hostIdentity() (map[string]string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	facts := map[string]string{"release": unix.ByteSliceToString(u.Release[:]), "version": unix.ByteSliceToString(u.Version[:])}
	for name, path := range map[string]string{"proc-version": "/proc/version", "boot-id": "/proc/sys/kernel/random/boot_id"} {
		body, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		facts[name] = strings.TrimSpace(string(body))
	}
	return facts, nil
}
