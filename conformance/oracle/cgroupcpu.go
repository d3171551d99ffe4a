// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"io/fs"
	"time"
)

// CPUTime is what all tasks of the cgroup have used of all CPUs since it was made: cpuacct.usage in
// nanoseconds on v1, usage_usec of cpu.stat on v2.
func (c Cgroup) CPUTime() (time.Duration, error) {
	if _, ok := c.Dirs["cpuacct"]; ok {
		n, err := c.number("cpuacct", "cpuacct.usage", "")
		return time.Duration(n), err
	}
	n, err := c.member("cpuacct", "", "cpu.stat", "usage_usec")
	return time.Duration(n) * time.Microsecond, err
}

// Throttled is in how many periods the kernel held the cgroup back at its CPU quota. A group without
// a quota has none.
func (c Cgroup) Throttled() (int64, error) {
	n, err := c.member("cpu", "cpu.stat", "cpu.stat", "nr_throttled")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // a kernel without CFS bandwidth control
	}
	return n, err
}
