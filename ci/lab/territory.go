// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// territory is everything that belongs to the lab of one cache folder. It is
// computed from the folder's path only: no record has to survive a crash.
type territory struct {
	id     string
	cache  string // symlinks resolved, as /proc and mountinfo show it
	dir    string // <cache>/lab: data root, work folder, log, configuration
	runDir string // /run/hl-<id>
	cgroup string // /hallmark-lab-<id>
}

// newTerritory resolves cache, which must exist. The id has 6 hex digits since
// runsc puts its control socket, whose name has 75 bytes, below the run folder,
// and falls back to a shared folder when the path has more than 107 (unix(7)).
func newTerritory(cache string) (territory, error) {
	abs, err := filepath.EvalSymlinks(cache)
	if err != nil {
		return territory{}, fmt.Errorf("resolve cache folder: %w", err)
	}
	sum := sha256.Sum256([]byte(abs))
	id := hex.EncodeToString(sum[:3])
	return territory{
		id: id, cache: abs, dir: filepath.Join(abs, "lab"),
		runDir: "/run/hl-" + id, cgroup: "/hallmark-lab-" + id,
	}, nil
}

func (t territory) dataRoot() string { return filepath.Join(t.dir, "data") }
func (t territory) workDir() string  { return filepath.Join(t.dir, "work") }
func (t territory) socket() string   { return filepath.Join(t.runDir, "docker.sock") }

func (t territory) owns(path string) bool { return below(path, t.dir) || below(path, t.runDir) }

// engineNames are programs that belong to the lab when an argument names its folders.
var engineNames = []string{"dockerd", "containerd", "containerd-shim-runc-v2", "containerd-shim", "runc", "runsc", "docker-init",
	"docker-proxy", "hallmark-worker", "hallmark-quota"}

// ownsProcess says whether p is one of the lab's. A process that merely mentions
// the lab, such as a pager on its log, is not.
func (t territory) ownsProcess(p process) bool {
	for line := range strings.Lines(p.cgroups) {
		_, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":") // "id:controllers:path"
		_, path, _ = strings.Cut(path, ":")
		if below(path, t.cgroup) {
			return true
		}
	}
	if p.exe != "" && (t.owns(p.exe) || below(p.exe, filepath.Join(t.cache, "runtimes"))) && t.mentions(p) {
		return true
	}
	return slices.Contains(engineNames, filepath.Base(p.exe)) && t.mentions(p)
}

func (t territory) mentions(p process) bool {
	return strings.Contains(p.cmdline, t.runDir+"/") || strings.Contains(p.cmdline, t.dir+"/")
}

// leftover is one thing of the lab's that is on the host.
type leftover struct {
	kind string // process, mount, loop, cgroup, netns, socket
	name string
}

func (l leftover) String() string { return l.kind + " " + l.name }

// scan looks at the whole host for what belongs to the lab. netns is the inode
// of its network namespace, 0 when unknown.
func (t territory) scan(netns uint64) ([]leftover, error) {
	var out []leftover
	procs, err := processes()
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		switch {
		case p.zombie:
		case t.ownsProcess(p):
			out = append(out, leftover{"process", p.String()})
		case netns != 0 && p.netns == netns:
			out = append(out, leftover{"netns", "held by process " + p.String()})
		}
	}
	mounts, err := t.mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		out = append(out, leftover{"mount", m})
	}
	loops, err := t.loops()
	if err != nil {
		return nil, err
	}
	for _, l := range loops {
		out = append(out, leftover{"loop", l})
	}
	dirs, err := t.cgroupDirs()
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		out = append(out, leftover{"cgroup", d})
	}
	return out, nil
}

// mounts lists mount points below the lab's folders, deepest and latest first.
func (t territory) mounts() ([]string, error) {
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		// A network namespace file shows as fstype nsfs at its mount point, so one rule serves all.
		return !t.owns(strings.TrimSuffix(i.Mountpoint, "//deleted")), false
	})
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var out []string
	for _, i := range infos {
		out = append(out, i.Mountpoint)
	}
	slices.Reverse(out)
	return out, nil
}

// loops lists the loop devices whose backing file lies below the lab's folders.
func (t territory) loops() ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var out []string
	for _, f := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			continue // detached meanwhile
		}
		path := strings.TrimSuffix(strings.TrimSpace(string(body)), " (deleted)")
		if t.owns(path) {
			out = append(out, "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(f))))
		}
	}
	return out, nil
}

// cgroupDirs lists the lab's cgroup parent in each mounted hierarchy where it exists.
func (t territory) cgroupDirs() ([]string, error) {
	roots, err := cgroupRoots()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range roots {
		dir := filepath.Join(r, t.cgroup)
		if _, err := os.Stat(dir); err == nil {
			out = append(out, dir)
		}
	}
	return out, nil
}

// cgroupRoots lists the mount points of all cgroup hierarchies, v1 and v2, each file system once.
func cgroupRoots() ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var out []string
	seen := map[string]bool{}
	for _, i := range infos {
		dev := fmt.Sprintf("%d:%d", i.Major, i.Minor)
		if i.Root != "/" || seen[dev] {
			continue
		}
		seen[dev] = true
		out = append(out, i.Mountpoint)
	}
	return out, nil
}
