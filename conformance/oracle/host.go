// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Modules are the names of the host's loaded modules, sorted; their use counts move by themselves.
// A kernel without modules has none.
func Modules() ([]string, error) {
	body, err := os.ReadFile("/proc/modules")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read modules: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(body)) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// Mount is one line of proc_pid_mountinfo(5). Options are the mount's own, not its filesystem's.
type Mount struct{ ID, Root, Point, Options, Type, Source string }

// Mounts are those that a host process sees.
func Mounts(pid int) ([]Mount, error) {
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var list []Mount
	for line := range strings.Lines(string(body)) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 6 || len(fields) < dash+3 {
			return nil, fmt.Errorf("read mounts: malformed line %q", line)
		}
		list = append(list, Mount{ID: fields[0], Root: fields[3], Point: fields[4], Options: fields[5], Type: fields[dash+1], Source: fields[dash+2]})
	}
	if len(list) == 0 {
		return nil, errors.New("read mounts: there are none")
	}
	return list, nil
}
