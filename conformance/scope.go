// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// scope is where one process of a run keeps everything that it makes on the host: containers in
// cgroups below CgroupParent, mounts and loop devices below WorkDir. What lies in the scope of
// another process is that one's to account for; what lies in nobody's counts for whoever sees it.
type scope struct {
	CgroupParent string `json:"cgroupParent"` // from each hierarchy's root, "/lab/0a1b"; "" when the target has none
	WorkDir      string `json:"workDir"`      // absolute
}

// scopeFile is process n's scope, in the folder that the processes of a run share.
func scopeFile(dir string, n int) string { return filepath.Join(dir, fmt.Sprintf("p%d.scope", n)) }

// publishScope puts b's scope where the other processes find it, whole or not at all. It is called
// before the first case, so that no case sees another process without its scope.
func (b *bench) publishScope() error {
	if b.shared == "" {
		return nil
	}
	body, err := json.Marshal(b.scope)
	if err != nil {
		return fmt.Errorf("encode scope: %w", err)
	}
	path := scopeFile(b.shared, b.proc)
	if err := os.WriteFile(path+".new", body, 0o600); err != nil {
		return fmt.Errorf("write scope: %w", err)
	}
	return os.Rename(path+".new", path)
}

// othersScopes are those of the run's other processes. A scope that cannot be read is left out,
// and so is a cgroup parent that holds this process's own: it would excuse everything.
func (b *bench) othersScopes() []scope {
	var out []scope
	for n := 1; n <= b.procs; n++ {
		if n == b.proc || b.shared == "" {
			continue
		}
		body, err := os.ReadFile(scopeFile(b.shared, n))
		if err != nil {
			continue
		}
		var s scope
		if json.Unmarshal(body, &s) != nil {
			continue
		}
		if s.holds(b.scope.CgroupParent) {
			s.CgroupParent = ""
		}
		out = append(out, s)
	}
	return out
}

// holds reports whether the cgroup lies in s.
func (s scope) holds(cgroup string) bool {
	return s.CgroupParent != "" && below(cgroup, s.CgroupParent)
}

// below reports whether path is dir or lies in it; "/" and "" are no folder of anybody's own.
func below(path, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return dir != "" && (path == dir || strings.HasPrefix(path, dir+"/"))
}
