// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"fmt"
	"os"
	"strings"
)

// Process names one process for good: proc_pid_stat(5), fields 1, 4 and 22.
type Process struct {
	Pid   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot
}

// Find names the process that has pid now; one that has ended, reaped or not, is an error.
func Find(pid int) (Process, error) {
	fields, err := stat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{Pid: pid, Start: fields[19]}, nil
}

// Alive reports whether it has not ended.
func (p Process) Alive() bool {
	if p.Pid <= 0 {
		return false
	}
	now, err := Find(p.Pid)
	return err == nil && now == p
}

// Parent returns the pid of pid's parent.
func Parent(pid int) (int, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	var ppid int
	if _, err := fmt.Sscan(fields[1], &ppid); err != nil {
		return 0, fmt.Errorf("parent of process %d: %w", pid, err)
	}
	return ppid, nil
}

// stat are the fields from the third on: the second is a name that may hold anything.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return nil, fmt.Errorf("stat of process %d is short", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return nil, fmt.Errorf("process %d has ended", pid) // its parent has not asked for it yet
	}
	return fields, nil
}
