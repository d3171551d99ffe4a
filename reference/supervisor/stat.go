// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// stat is the part of proc_pid_stat(5) that names a process and its parent. pid and start together
// name one process: a pid comes back only with a later start.
type stat struct {
	pid, ppid int
	group     int // process group
	state     byte
	threads   int    // the dead leader of the thread group counts
	start     uint64 // clock ticks since boot
}

// dead says that no thread is left. The state is that of the first thread only, which may leave by exit(2)
// and be a zombie while others run on.
func (s stat) dead() bool { return s.state == 'X' || s.state == 'Z' && s.threads <= 1 }

// halted says that the process cannot run, so cannot fork. Of one whose first thread has left the state
// does not tell, so it counts as running.
func (s stat) halted() bool { return s.dead() || s.state == 'T' }

var (
	errStat    = errors.New("unreadable process state")
	errPartial = errors.New("not every process could be looked at")
)

func readStat(pid int) (stat, error) {
	// One open, read, close with raw calls: sweeps do this for every process.
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return stat{}, fmt.Errorf("%w: %w", errStat, err)
	}
	defer unix.Close(fd)
	var b [1024]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return stat{}, fmt.Errorf("%w: %w", errStat, err)
	}
	return parseStat(pid, b[:n])
}

// parseStat reads one line. The name is in brackets and the tenant chooses it, brackets
// included, so fields count from the last one.
func parseStat(pid int, line []byte) (stat, error) {
	i := bytes.LastIndexByte(line, ')')
	if i < 0 {
		return stat{}, errStat
	}
	f := bytes.Fields(line[i+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errStat
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	group, err2 := strconv.Atoi(string(f[2]))
	threads, err3 := strconv.Atoi(string(f[17]))
	start, err4 := strconv.ParseUint(string(f[19]), 10, 64)
	if errors.Join(err1, err2, err3, err4) != nil {
		return stat{}, errStat
	}
	return stat{pid: pid, ppid: ppid, group: group, state: f[0][0], threads: threads, start: start}, nil
}

// descendants returns the processes below root, parents before children, of one look at all processes.
func descendants(root int, deadline time.Time) ([]stat, error) {
	all, err := everybody(deadline)
	return below(all, func(s stat) bool { return s.ppid == root }), err
}

// everybody is one look at all processes. It is not atomic: a link in it is proven by reading it again.
// After the deadline no more is read. When that leaves a process out, or one that is there cannot be read, what was
// found is returned with [errPartial].
func everybody(deadline time.Time) (all []stat, err error) {
	err = eachProcess(deadline, func(s stat) { all = append(all, s) })
	return all, err
}

// eachProcess is such a look, which gives each process to f as soon as it has been read.
func eachProcess(deadline time.Time, f func(stat)) (partial error) {
	d, err := os.Open("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if time.Now().After(deadline) {
			partial = errPartial
			break
		}
		s, err := readStat(pid)
		switch {
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH): // gone
		case err != nil:
			partial = fmt.Errorf("%w: %w", errPartial, err)
		default:
			f(s)
		}
	}
	return partial
}

// below returns the processes of a look that roots chooses, and those below them, parents before children.
func below(all []stat, roots func(stat) bool) (out []stat) {
	children := map[int][]stat{}
	for _, s := range all {
		children[s.ppid] = append(children[s.ppid], s)
		if roots(s) {
			out = append(out, s)
		}
	}
	for i := 0; i < len(out); i++ {
		for _, s := range children[out[i].pid] {
			if s.start >= out[i].start { // a parent is never younger than its child
				out = append(out, s)
			}
		}
	}
	return out
}
