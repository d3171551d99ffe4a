// SPDX-License-Identifier: Apache-2.0

package ke

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// boundingAllowed is {SETUID, SETGID, KILL}, the set that PID 1 has.
const boundingAllowed = uint64(1)<<unix.CAP_SETUID | uint64(1)<<unix.CAP_SETGID | uint64(1)<<unix.CAP_KILL

const tenantUID = 65532

// KE04 asks the kernel for everything that a tenant has no business with.
var KE04 = conformance.Case{
	ID: "KE-04", Revision: 1, Title: "Namespaces and caps",
	Requirement: "A tenant has no capability and no supplementary group, cannot regain any by a set-id or capability binary, and changes nothing of the host's namespaces, modules or mounts.",
	Threat:      "A tenant climbs to root, in the sandbox or out of it.",
	Attack:      "Some fifty calls: unshare, clone3, setns, user namespace maps, mount, pivot_root, keyctl, bpf, perf, io_uring, userfaultfd, modules, kexec, reboot and others; then copies of the attack program with set-uid root, set-gid root and file capabilities, planted by the host.",
	Witness:     "Calls that were made (at least 50) and planted binaries that ran (3).",
	Oracle:      "/proc/<pid>/status of the tenant process, read by a root process of the suite in the sandbox; owners of the files that planted binaries leave, read on the host; the host's namespaces, modules, mounts and name before and after.",
	Precedent:   "CVE-2022-24769; CVE-2022-36109",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold, conformance.PartCgroup},
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

	// Attack; while the tenant stays, a root process of the suite reads what the kernel says of it.
	argv := attack.Command(program, "privilege", "-hold", "4s", "-ready", "ke04-ready")
	for _, name := range planted {
		argv = append(argv, "./"+name)
	}
	done := make(chan attack.Outcome, 1)
	go func() { done <- attack.Run(ctx, sb, target.Command{Argv: argv, Timeout: 40 * time.Second}) }()
	ready, err := attack.Eventually(ctx, 30*time.Second, func() (bool, error) {
		size, err := oracle.FileSize(filepath.Join(c.Workspace, "ke04-ready"))
		return size > 0, err
	})
	if err != nil {
		return err
	}
	if !ready {
		return fmt.Errorf("the probe did not get ready: %+v", <-done)
	}
	seen, err := attack.Foothold(ctx, t, sb, "observe")
	if err != nil {
		return err
	}
	o := <-done
	after, err := hostFacts(c)
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "privilege", o.Report)
	attack.Witness(t, "observe", seen)
	t.NeedWitness("calls", 50)
	t.Witness("calls", o.Report.Counts["attempts"])
	t.NeedWitness("planted-run", int64(len(planted)))
	t.Witness("planted-run", o.Report.Counts["planted-run"])
	t.NeedWitness("tenants-observed", 1)
	t.Witness("tenants-observed", seen.Counts["tenants"])
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
		value := seen.Facts[key]
		switch line {
		case "CapEff", "CapPrm", "CapInh", "CapAmb":
			if n, err := strconv.ParseUint(value, 16, 64); err != nil || n != 0 {
				t.Fail("capability-kept", "%s is %s", key, value)
			}
		case "CapBnd":
			if n, err := strconv.ParseUint(value, 16, 64); err != nil || n&^boundingAllowed != 0 {
				t.Fail("bounding-set-wide", "%s is %s", key, value)
			}
		case "Groups":
			if value != "" {
				t.Fail("groups-kept", "%s is %q", key, value)
			}
		case "Uid", "Gid":
			if value != "65532 65532 65532 65532" {
				t.Fail("ids-mixed", "%s is %q", key, value)
			}
		}
	}
	// The one thing that only the process itself can read where the sentry has no such line.
	if got := o.Report.Facts["no-new-privs"]; got != "1" {
		t.Fail("no-new-privs-missing", "prctl says %q", got)
	}
	// Verdict: what the planted binaries left behind.
	for _, name := range planted {
		st, err := os.Lstat(filepath.Join(c.Workspace, name+".effect"))
		if err != nil {
			continue // it did not run: the witness says so
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Uid != tenantUID || sys.Gid != tenantUID {
			t.Fail("set-id-gained", "the %s binary left a file of %d:%d", name, sys.Uid, sys.Gid)
		}
	}
	// Verdict: the host.
	for name, value := range before {
		if !bytes.Equal(value, after[name]) {
			t.Fail("host-changed", "the host's %s changed: %.300s", name, after[name])
		}
	}
	return nil
}

// plant writes copies of the attack program with the mode or attribute of their name.
func plant(workspace string, names []string) error {
	body, err := os.ReadFile(filepath.Join(workspace, conformance.TenantProgram))
	if err != nil {
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

// hostFacts are what no tenant may change: the sandbox's set of namespaces, loaded modules, the
// host's mounts where the attack mounts and unmounts, its name.
func hostFacts(c target.Container) (map[string][]byte, error) {
	pids, err := oracle.Cgroup{Dirs: c.Cgroups}.Procs()
	if err != nil {
		return nil, err
	}
	f := map[string][]byte{}
	f["sandbox namespaces"] = []byte(strings.Join(slices.Sorted(maps.Keys(oracle.Namespaces(pids))), " "))
	if f["modules"], err = moduleNames(); err != nil {
		return nil, err
	}
	if f["mounts"], err = mountsAt("/", "/tmp", "/proc", c.Workspace); err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	f["name"] = []byte(name)
	return f, nil
}

// moduleNames reads the names of the loaded modules; their use counts move by themselves. A
// kernel without modules has no such file.
func moduleNames() ([]byte, error) {
	body, err := os.ReadFile("/proc/modules")
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.SplitSeq(string(body), "\n") {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	return []byte(strings.Join(names, " ")), nil
}

// mountsAt are the lines of proc_pid_mountinfo(5) for exactly these mount points. Others come and
// go with whatever else the host does.
func mountsAt(points ...string) ([]byte, error) {
	body, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.SplitSeq(string(body), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && slices.Contains(points, fields[4]) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("no mount at any of %q", points)
	}
	return []byte(strings.Join(lines, "\n")), nil
}
