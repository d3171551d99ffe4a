// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// publishScope puts b's scope where the other processes find it, and other runs on the same engine,
// whole or not at all. It is called before the first case, so that no case sees another process
// without its scope.
func (b *bench) publishScope() error {
	var paths []string
	if b.shared != "" {
		paths = append(paths, scopeFile(b.shared, b.proc))
	}
	if b.beside != "" {
		paths = append(paths, filepath.Join(b.beside, b.run+"."+filepath.Base(scopeFile("", b.proc))))
	}
	body, err := json.Marshal(b.scope)
	if err != nil {
		return fmt.Errorf("encode scope: %w", err)
	}
	for _, path := range paths {
		if err := os.WriteFile(path+".new", body, 0o600); err != nil {
			return fmt.Errorf("write scope: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("publish scope: %w", err)
		}
	}
	return nil
}

// othersScopes are those of the run's other processes.
func (b *bench) othersScopes() []scope {
	var files []string
	for n := 1; n <= b.procs; n++ {
		if n != b.proc && b.shared != "" {
			files = append(files, scopeFile(b.shared, n))
		}
	}
	return b.readScopes(files)
}

// besideScopes are those of the other runs that share the folder of [Options.Beside], also of those
// that have ended: what they left is not this one's.
func (b *bench) besideScopes() []scope {
	if b.beside == "" {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(b.beside, "*.scope")) // a folder's name of ours: no pattern is bad
	return b.readScopes(slices.DeleteFunc(files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), b.run+".") }))
}

// readScopes leaves out what cannot be read, and a cgroup parent that holds this process's own: it
// would excuse everything.
func (b *bench) readScopes(files []string) []scope {
	var out []scope
	for _, f := range files {
		var s scope
		body, err := os.ReadFile(f)
		if err != nil || json.Unmarshal(body, &s) != nil {
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
