// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

func kernelFacts() (evidence.CohortKernel, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return evidence.CohortKernel{}, fmt.Errorf("kernel: %w", err)
	}
	return evidence.CohortKernel{Release: unix.ByteSliceToString(u.Release[:]), Build: unix.ByteSliceToString(u.Version[:])}, nil
}

// cgroupMode tells the unified hierarchy, v1, and v1 with a unified tree beside it (cgroups(7)).
func cgroupMode() string {
	unified := func(path string) bool {
		var st unix.Statfs_t
		return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
	}
	switch {
	case unified("/sys/fs/cgroup"):
		return "v2"
	case unified("/sys/fs/cgroup/unified"):
		return "hybrid"
	default:
		return "v1"
	}
}

// sysLSMListModules is lsm_list_modules(2), Linux 6.8, the same number on all architectures.
const sysLSMListModules = 461

// lsmNames are the LSM_ID_ values of linux/lsm.h.
var lsmNames = map[uint64]string{
	100: "capability", 101: "selinux", 102: "smack", 103: "tomoyo", 104: "apparmor", 105: "yama", 106: "loadpin",
	107: "safesetid", 108: "lockdown", 109: "bpf", 110: "landlock", 111: "ima", 112: "evm", 113: "ipe",
}

// activeLSMs asks the kernel, and on kernels without the system call securityfs, which may not be mounted.
func activeLSMs() []string {
	var ids [64]uint64
	size := uint32(unsafe.Sizeof(ids))
	n, _, errno := unix.Syscall(sysLSMListModules, uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&size)), 0)
	out := []string{}
	if errno == 0 && int(n) <= len(ids) {
		for _, id := range ids[:n] {
			name, ok := lsmNames[id]
			if !ok {
				name = "lsm-" + strconv.FormatUint(id, 10)
			}
			out = append(out, name)
		}
	} else if body, err := os.ReadFile("/sys/kernel/security/lsm"); err == nil {
		out = append(out, strings.Split(strings.TrimSpace(string(body)), ",")...)
	} else {
		out = append(out, Unknown)
	}
	slices.Sort(out)
	return out
}

// cmdlineNames are the kernel parameters that change what a sandbox can rely on
// (kernel-parameters.txt). Others, such as consoles, stay out: they would make
// good evidence stale for no reason.
var cmdlineNames = strings.Fields(`mitigations spectre_v2 spectre_v2_user spectre_bhi spec_store_bypass_disable spec_rstack_overflow
	nospectre_v1 nospectre_v2 nospec_store_bypass_disable l1tf mds tsx tsx_async_abort srbds mmio_stale_data retbleed reg_file_data_sampling
	gather_data_sampling indirect_target_selection tsa vmscape pti nopti kpti kvm-intel.nested kvm.nx_huge_pages nosmt nosmep nosmap nokaslr
	noexec vsyscall vdso lockdown lsm lsm.debug security apparmor selinux enforcing slab_nomerge slub_debug slab_debug init_on_alloc
	init_on_free page_alloc.shuffle randomize_kstack_offset iommu intel_iommu amd_iommu module.sig_enforce nomodule debugfs
	user_namespace.enable systemd.unified_cgroup_hierarchy cgroup_no_v1 cgroup_disable swapaccount kernel.unprivileged_userns_clone`)

func kernelCmdline() []string {
	body, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return []string{Unknown}
	}
	return relevantParameters(string(body))
}

func relevantParameters(cmdline string) []string {
	out := []string{}
	for _, word := range strings.Fields(cmdline) {
		if word == "--" {
			break // the rest is for init, and may name addresses
		}
		name, _, _ := strings.Cut(word, "=")
		if slices.Contains(cmdlineNames, strings.ReplaceAll(name, "-", "_")) || slices.Contains(cmdlineNames, name) {
			out = append(out, word)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

const vulnerabilities = "/sys/devices/system/cpu/vulnerabilities"

func mitigations() map[string]string {
	out := map[string]string{}
	entries, err := os.ReadDir(vulnerabilities)
	if err != nil {
		return out
	}
	for _, e := range entries {
		body, err := os.ReadFile(filepath.Join(vulnerabilities, e.Name()))
		if err != nil {
			out[e.Name()] = Unknown
			continue
		}
		out[e.Name()] = strings.TrimSpace(string(body))
	}
	return out
}

// sysctlNames guard links, user namespaces, ptrace and kernel interfaces that a tenant might reach.
var sysctlNames = strings.Fields(`fs.protected_fifos fs.protected_hardlinks fs.protected_regular fs.protected_symlinks fs.suid_dumpable
	kernel.apparmor_restrict_unprivileged_userns kernel.io_uring_disabled kernel.kptr_restrict kernel.perf_event_paranoid
	kernel.randomize_va_space kernel.unprivileged_bpf_disabled kernel.unprivileged_userns_clone kernel.yama.ptrace_scope
	vm.unprivileged_userfaultfd`)

// sysctls reads them; "absent" means that this kernel has no such setting. The
// number of user namespaces depends on the memory size: only on or off is a fact.
func sysctls() map[string]string {
	out := map[string]string{}
	for _, name := range sysctlNames {
		out[name] = sysctl(name)
	}
	switch v := sysctl("user.max_user_namespaces"); v {
	case "0", Unknown, "absent":
		out["user.max_user_namespaces"] = v
	default:
		out["user.max_user_namespaces"] = "nonzero"
	}
	return out
}

func sysctl(name string) string {
	body, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "absent"
	case err != nil:
		return Unknown
	default:
		return string(bytes.TrimSpace(body))
	}
}
