// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Descriptors is how many descriptors a host process holds. Processes that share one table, as a
// sentry and its stubs may, have the same number each.
func Descriptors(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/fd", pid)
	// Linux 6.2 and later say it as the size of the folder, without a list of them all.
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("count descriptors: %w", err)
	}
	if st.Size > 0 {
		return st.Size, nil
	}
	d, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("count descriptors: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0, fmt.Errorf("count descriptors: %w", err)
	}
	return int64(len(names)), nil
}

// MostDescriptors is the highest [Descriptors] of the given host processes, and their sum. What has
// ended is left out.
func MostDescriptors(pids []int) (most, sum int64, err error) {
	for _, pid := range pids {
		n, err := Descriptors(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		most, sum = max(most, n), sum+n
	}
	return most, sum, nil
}

// OpenFiles is how many open files the whole host has: the first number of proc_sys_fs(5)'s file-nr.
// It lags behind by what each CPU has not yet told.
func OpenFiles() (int64, error) {
	body, err := os.ReadFile("/proc/sys/fs/file-nr")
	if err != nil {
		return 0, fmt.Errorf("read open files: %w", err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\t")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read open files: %w", err)
	}
	return n, nil
}
