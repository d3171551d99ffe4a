// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ResidentMemory is VmRSS and VmHWM of a process in bytes: now, and the highest since the start
// or the last [ResetPeak].
func ResidentMemory(pid int) (now, peak int64, err error) {
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	found := 0
	for line := range strings.SplitSeq(string(body), "\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok || (name != "VmRSS" && name != "VmHWM") {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read %s: %w", name, err)
		}
		found++
		if name == "VmRSS" {
			now = kib << 10
		} else {
			peak = kib << 10
		}
	}
	if found != 2 {
		return 0, 0, fmt.Errorf("process %d has no memory lines", pid)
	}
	return now, peak, nil
}

// ResetPeak sets VmHWM to the present VmRSS (proc_pid_clear_refs(5), value 5, Linux 4.0).
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// TouchAndRelease maps size bytes, dirties every page and unmaps them: a planted peak.
func TouchAndRelease(size int) error {
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map planted memory: %w", err)
	}
	for i := 0; i < size; i += os.Getpagesize() {
		m[i] = 1
	}
	return unix.Munmap(m)
}
