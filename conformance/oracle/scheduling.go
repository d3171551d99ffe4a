// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Preferred lists the threads of the given host processes that the kernel runs before others: nice
// below 0, or a real-time or deadline policy (fields 19 and 41 of proc_pid_stat(5)), as "pid nice
// policy". threads is how many were looked at; what has ended is left out.
func Preferred(pids []int) (list []string, threads int64, err error) {
	for _, pid := range pids {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return nil, 0, err
		}
		for _, path := range stats {
			body, err := os.ReadFile(path)
			if err != nil {
				continue // it has ended
			}
			text := string(body)
			fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // from field 3 on
			if len(fields) < 39 {
				return nil, 0, fmt.Errorf("%s is short", path)
			}
			nice, nerr := strconv.Atoi(fields[16])
			policy, perr := strconv.Atoi(fields[38])
			if nerr != nil || perr != nil {
				return nil, 0, fmt.Errorf("%s is malformed", path)
			}
			threads++
			const fifo, rr, deadline = 1, 2, 6 // sched(7)
			if nice < 0 || policy == fifo || policy == rr || policy == deadline {
				list = append(list, fmt.Sprintf("%s nice %d policy %d", filepath.Base(filepath.Dir(path)), nice, policy))
			}
		}
	}
	return list, threads, nil
}
