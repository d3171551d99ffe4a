// SPDX-License-Identifier: Apache-2.0

package ke

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// boundingAllowed is {SETUID, SETGID, KILL}, the set that PID 1 has.
const boundingAllowed = uint64(1)<<unix.CAP_SETUID | uint64(1)<<unix.CAP_SETGID | uint64(1)<<unix.CAP_KILL

// tenantUID is the tenant's user and group, by the conventions of package target.
const tenantUID = 65532

// effectsFolder is where planted binaries leave their files, in the workspace.
const effectsFolder = "ke04-effects"

// What the attack calls what it mounts, and the module that it names (fixtures/tenant/forbidden.go).
const (
	ke04Mount  = "hallmark-tenant"
	ke04Module = "hallmark_absent"
)

// KE04 asks the kernel for everything that a tenant has no business with.
var KE04 = conformance.Case{
	ID: "KE-04", Revision: 3, Title: "Namespaces and caps",
	Requirement: "A tenant has no capability and no group but its own, cannot regain any by a set-id or capability binary, and changes nothing of the namespaces of the host and of the sandbox's host processes, nor of the host's modules and mounts.",
	Threat:      "A tenant climbs to root, in the sandbox or out of it.",
	Attack:      "Some fifty calls: unshare, clone3, setns, user namespace maps, mount, pivot_root, keyctl, bpf, perf, io_uring, userfaultfd, modules, kexec, reboot and others; then copies of the attack program with set-uid root, set-gid root and file capabilities, planted by the host.",
	Witness:     "Calls that were made (at least 50); planted binaries that left a file, as the host sees it, or that the kernel refused to execute because they promise what the tenant may never have (3); tenant processes that were looked at (at least 1), and no_new_privs: on the host where the tenant is a host process, else by the process's own word (at least 1).",
	Oracle:      "/proc/<pid>/status of the tenant process, read by a root process of the suite in the sandbox, and on the host where the tenant is a host process; owners of the files that planted binaries leave, read on the host; namespaces of the sandbox's host processes, of the suite's own process and, where it may be read, of the host's init, the module and the mounts that the attack can make or take away, before and after. Other modules and mounts are recorded.",
	Precedent:   "CVE-2022-24769; CVE-2022-36109",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold, conformance.PartCgroup, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleProcess, conformance.OracleTreeHash},
	Kills:    []conformance.Kill{{Mutant: "m34", Reason: "capability-kept"}},
	Run:      runKE04,
}

func runKE04(ctx context.Context, t *conformance.T) error {
	// Arrange: copies of the attack program that promise privilege.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	planted := []string{"set-uid", "set-gid", "file-caps"}
	if err := plant(c.Workspace, planted); err != nil {
		return err
	}
	before, err := hostFacts(c)
	if err != nil {
		return err
	}

	// Attack. The tenant stays until the host removes its file: by then a root process of the suite
	// and the host have read what their kernels say of it.
	ready := filepath.Join(c.Workspace, "ke04-ready")
	argv := attack.Command(program, "privilege", "-hold", "60s", "-ready", "ke04-ready", "-effects", effectsFolder)
	for _, name := range planted {
		argv = append(argv, "./"+name)
	}
	done := make(chan attack.Outcome, 1)
	go func() { done <- attack.Run(ctx, sb, target.Command{Argv: argv, Timeout: 75 * time.Second}) }()
	there, err := attack.Eventually(ctx, 30*time.Second, func() (bool, error) {
		size, err := oracle.FileSize(ready)
		return size > 0, err
	})
	if err != nil {
		return err
	}
	if !there {
		return errors.New("the probe did not get ready within 30 s")
	}
	seen, err := attack.Foothold(ctx, t, sb, "observe")
	if err != nil {
		return err
	}
	outside, err := tenantsOnHost(c)
	if err != nil {
		return err
	}
	if err := os.Remove(ready); err != nil {
		return err
	}
	o := <-done
	if o.Err != nil {
		return fmt.Errorf("the probe: %w", o.Err)
	}
	if o.Report.Attack == "" {
		return fmt.Errorf("the probe ended without a report: exit code %d, timed out %v: %.300s", o.Result.ExitCode, o.Result.TimedOut, o.Result.Stderr)
	}
	after, err := hostFacts(c)
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "privilege", o.Report)
	attack.Witness(t, "observe", seen)
	t.NeedWitness("calls", 50)
	t.Witness("calls", o.Report.Counts["attempts"])
	t.NeedWitness("tenants-observed", 1)
	t.Witness("tenants-observed", seen.Counts["tenants"])
	t.Observe("tenants-on-host", len(outside))
	t.NeedWitness("no-new-privs", 1)
	if len(outside) == 0 && o.Report.Facts["no-new-privs"] == "1" { // a sentry keeps the flag to itself
		t.Witness("no-new-privs", 1)
	}
	allowed := []string{}
	for _, name := range slices.Sorted(maps.Keys(o.Report.Errno)) {
		if o.Report.Errno[name]["ok"] > 0 {
			allowed = append(allowed, name)
		}
	}
	t.Observe("calls-that-worked", allowed) // inside a sentry many are harmless: recorded, not judged

	// Verdict: capabilities and groups, process by process.
	for _, key := range slices.Sorted(maps.Keys(seen.Facts)) {
		_, line, _ := strings.Cut(key, ".")
		judgeCredential(t, "inside "+key, line, seen.Facts[key])
	}
	for pid, lines := range outside {
		for _, line := range slices.Sorted(maps.Keys(lines)) {
			judgeCredential(t, fmt.Sprintf("host process %d: %s", pid, line), line, lines[line])
		}
		if lines["NoNewPrivs"] == "1" {
			t.Witness("no-new-privs", 1)
		}
	}
	judgePlanted(t, c.Workspace, planted, o.Report)
	judgeHost(t, before, after)
	return nil
}

// judgeCredential judges one line of /proc/<pid>/status of a tenant process.
func judgeCredential(t *conformance.T, what, line, value string) {
	n, err := strconv.ParseUint(value, 16, 64)
	switch line {
	case "CapEff", "CapPrm", "CapInh", "CapAmb":
		if err != nil || n != 0 {
			t.Fail("capability-kept", "%s is %s", what, value)
		}
	case "CapBnd":
		if err != nil || n&^boundingAllowed != 0 {
			t.Fail("bounding-set-wide", "%s is %s", what, value)
		}
	case "Groups":
		// An engine lists the tenant's own group once more, which gives it nothing (CVE-2022-36109).
		for _, group := range strings.Fields(value) {
			if group != strconv.Itoa(tenantUID) {
				t.Fail("groups-kept", "%s is %q", what, value)
				break
			}
		}
	case "Uid", "Gid":
		if value != "65532 65532 65532 65532" {
			t.Fail("ids-mixed", "%s is %q", what, value)
		}
	case "NoNewPrivs":
		if value != "1" {
			t.Fail("no-new-privs-missing", "%s is %q", what, value)
		}
	}
}

// judgePlanted judges the files that the planted binaries left, by what the host sees of them. A
// binary that left none did not run: that is a missing witness, and said aloud, unless the kernel
// refused it. execve(2) answers EPERM to file capabilities outside of the bounding set
// (capabilities(7), "Safety checking for capability-dumb binaries").
func judgePlanted(t *conformance.T, workspace string, planted []string, r report.Report) {
	t.NeedWitness("planted-outcomes", int64(len(planted)))
	for _, name := range planted {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(workspace, effectsFolder, name), &st); err != nil {
			t.Observe("no-effect "+name, fmt.Sprintf("%v; the attack says %q", err, r.Facts["run ./"+name]))
			if r.Errno["run "+name]["EPERM"] > 0 {
				t.Witness("planted-outcomes", 1)
			}
			continue
		}
		t.Witness("planted-outcomes", 1)
		t.Observe("effect "+name, fmt.Sprintf("%d:%d", st.Uid, st.Gid))
		if st.Uid != tenantUID || st.Gid != tenantUID {
			t.Fail("set-id-gained", "the %s binary left a file of %d:%d", name, st.Uid, st.Gid)
		}
	}
}

// tenantsOnHost are the credentials of the host processes in the sandbox's cgroup that execute the
// attack program. Under a sentry no host process does: then there are none.
func tenantsOnHost(c target.Container) (map[int]map[string]string, error) {
	pids, err := oracle.Cgroup{Dirs: c.Cgroups}.Procs()
	if err != nil {
		return nil, err
	}
	program, err := oracle.FileDigest(filepath.Join(c.Workspace, conformance.TenantProgram))
	if err != nil {
		return nil, err
	}
	found := map[int]map[string]string{}
	for _, pid := range pids {
		lines, err := oracle.Credentials(pid)
		if err != nil {
			continue // it ended
		}
		digest, err := oracle.ExeDigest(pid)
		if err == nil && digest == program {
			found[pid] = lines
		}
	}
	return found, nil
}

// plant writes copies of the attack program with the mode or attribute of their name, and makes the
// folder for what they leave: everybody may write there, because root without CAP_DAC_OVERRIDE could
// not write into the tenant's own.
func plant(workspace string, names []string) error {
	body, err := os.ReadFile(filepath.Join(workspace, conformance.TenantProgram))
	if err != nil {
		return err
	}
	effects := filepath.Join(workspace, effectsFolder)
	if err := os.Mkdir(effects, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(effects, 0o777); err != nil { // past the umask
		return err
	}
	for _, name := range names {
		path := filepath.Join(workspace, name)
		if err := os.WriteFile(path, body, 0o755); err != nil {
			return err
		}
		if err := os.Chown(path, 0, 0); err != nil {
			return err
		}
		switch name { // after chown(2), which clears the bits
		case "set-uid":
			err = unix.Chmod(path, 0o4755)
		case "set-gid":
			err = unix.Chmod(path, 0o2755)
		case "file-caps":
			err = unix.Setxattr(path, "security.capability", fileCaps(), 0)
		}
		if err != nil {
			return fmt.Errorf("plant %s: %w", name, err)
		}
	}
	return nil
}

// fileCaps is struct vfs_cap_data, revision 2, effective, all of {SETUID, SETGID, KILL,
// DAC_OVERRIDE, CHOWN} permitted (capabilities(7), linux/capability.h).
func fileCaps() []byte {
	permitted := uint32(boundingAllowed) | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_CHOWN
	b := binary.LittleEndian.AppendUint32(nil, 0x02000000|1)
	b = binary.LittleEndian.AppendUint32(b, permitted)
	return append(b, make([]byte, 12)...)
}

// facts are what no tenant may change, and what others may.
type facts struct {
	hostNamespaces    []string // of the suite, and of the host's init where the host lets root read them
	sandboxNamespaces []string // of the sandbox's host processes
	modules           []string
	mounts            []oracle.Mount // of the host's init
}

func hostFacts(c target.Container) (f facts, err error) {
	pids, err := oracle.Cgroup{Dirs: c.Cgroups}.Procs()
	if err != nil {
		return f, err
	}
	f.hostNamespaces = slices.Sorted(maps.Keys(oracle.Namespaces([]int{1, os.Getpid()})))
	f.sandboxNamespaces = slices.Sorted(maps.Keys(oracle.Namespaces(pids)))
	// A runtime that starts a namespace for each command has no process while none runs.
	if len(f.hostNamespaces) == 0 || len(f.sandboxNamespaces) == 0 && len(pids) > 0 {
		return f, fmt.Errorf("%d namespaces of the host and %d of the sandbox's %d host processes can be read", len(f.hostNamespaces), len(f.sandboxNamespaces), len(pids))
	}
	if f.modules, err = oracle.Modules(); err != nil {
		return f, err
	}
	f.mounts, err = oracle.Mounts(1)
	return f, err
}

// judgeHost fails what the attack alone can have done, and records what others may have.
func judgeHost(t *conformance.T, before, after facts) {
	if !slices.Equal(before.hostNamespaces, after.hostNamespaces) {
		t.Fail("host-changed", "the host's namespaces were %v and are %v", before.hostNamespaces, after.hostNamespaces)
	}
	if !slices.Equal(before.sandboxNamespaces, after.sandboxNamespaces) {
		t.Fail("host-changed", "the namespaces of the sandbox's host processes were %v and are %v", before.sandboxNamespaces, after.sandboxNamespaces)
	}
	if slices.Contains(before.modules, ke04Module) != slices.Contains(after.modules, ke04Module) {
		t.Fail("host-changed", "the module %s came or went", ke04Module)
	}
	t.Observe("modules-by-anybody", map[string]int{"before": len(before.modules), "after": len(after.modules)})
	others := 0
	for _, m := range after.mounts {
		if slices.Contains(before.mounts, m) {
			continue
		}
		old := slices.IndexFunc(before.mounts, func(b oracle.Mount) bool { return b.ID == m.ID })
		switch {
		case m.Source == ke04Mount, m.Point == "/tmp" && old < 0: // mount-tmpfs, mount-bind
			t.Fail("host-changed", "there is a new mount %s of %s", m.Point, m.Source)
		case m.Point == "/" && old >= 0 && before.mounts[old].Options != m.Options: // remount-root
			t.Fail("host-changed", "the options of / were %s and are %s", before.mounts[old].Options, m.Options)
		default:
			others++
		}
	}
	for _, m := range before.mounts {
		if (m.Point == "/proc" || m.Point == "/") && !slices.ContainsFunc(after.mounts, func(a oracle.Mount) bool { return a.ID == m.ID }) { // umount, pivot-root
			t.Fail("host-changed", "the mount %s is gone", m.Point)
		}
	}
	t.Observe("mounts-by-others", others)
}
