// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is what /proc says of one process at one moment.
type process struct {
	pid     int
	start   uint64 // clock ticks since boot; with pid it names a process for good
	exe     string // "" when it cannot be read, as for a kernel thread
	cmdline string // arguments joined by a blank
	cgroups string // content of /proc/<pid>/cgroup
	netns   uint64
	zombie  bool
}

func (p process) String() string {
	name := p.cmdline
	if name == "" {
		name = p.exe
	}
	if len(name) > 120 {
		name = name[:120] + "..."
	}
	return fmt.Sprintf("%d (%s)", p.pid, name)
}

// processes lists all processes; those that end meanwhile are left out.
func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := readProcess(pid)
		if err != nil {
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

func readProcess(pid int) (process, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	start, zombie, err := readStat(pid)
	if err != nil {
		return process{}, err
	}
	cg, err := os.ReadFile(dir + "/cgroup")
	if err != nil {
		return process{}, err
	}
	cmd, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		return process{}, err
	}
	p := process{pid: pid, start: start, zombie: zombie, cgroups: string(cg)}
	p.cmdline = strings.TrimSpace(string(bytes.ReplaceAll(cmd, []byte{0}, []byte{' '})))
	p.exe, _ = os.Readlink(dir + "/exe") // absent for kernel threads and zombies
	p.exe = strings.TrimSuffix(p.exe, " (deleted)")
	p.netns, _ = netnsInode(pid)
	return p, nil
}

// startTime returns field 22 of /proc/<pid>/stat (proc(5)). A zombie counts as gone.
func startTime(pid int) (uint64, error) {
	start, zombie, err := readStat(pid)
	if err == nil && zombie {
		err = fmt.Errorf("process %d has ended", pid)
	}
	return start, err
}

func readStat(pid int) (start uint64, zombie bool, err error) {
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false, err
	}
	// The command name may hold blanks and parentheses: fields start after the last one.
	_, rest, ok := strings.Cut(string(body[bytes.LastIndexByte(body, ')'):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, false, fmt.Errorf("read process %d: short stat", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0] == "Z" || fields[0] == "X", err
}

func netnsInode(pid int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// kill signals p unless its pid now belongs to another process. A pidfd pins
// the process between the check and the signal.
func (p process) kill(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.pid, err)
	}
	defer unix.Close(fd)
	if start, _, err := readStat(p.pid); err != nil || start != p.start {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// ancestors returns this process and all above it: a sweep spares them.
func ancestors() map[int]bool {
	out := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !out[pid]; {
		out[pid] = true
		body, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			break
		}
		fields := strings.Fields(string(body[bytes.LastIndexByte(body, ')')+1:]))
		if len(fields) < 2 {
			break
		}
		pid, _ = strconv.Atoi(fields[1])
	}
	return out
}

// below says whether path is root or lies under it; both are cleaned absolute paths.
func below(path, root string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
