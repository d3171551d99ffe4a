// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in proc_pid_stat(5): USER_HZ is 100 on every architecture that we run on.
const tick = time.Second / 100

// CPUTime is what a process has used of all CPUs since its start, in user and kernel mode, its
// threads included and its children not: fields 14 and 15 of proc_pid_stat(5).
func CPUTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // from field 3 on
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat of %d is short", pid)
	}
	var sum time.Duration
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat of %d: %w", pid, err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}
