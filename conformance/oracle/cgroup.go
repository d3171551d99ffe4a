// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Unlimited is the value of a limit that is not set: more than any machine has, and still an
// integer that every JSON reader holds exactly.
const Unlimited = int64(1) << 52

// Cgroup reads the files of one container's cgroup. Dirs maps a controller to the absolute path
// of its directory; on cgroup v2 the key "" holds the one directory. What a controller that is not there would
// say is [target.ErrUnavailable]: a target need not tell of all.
type Cgroup struct{ Dirs map[string]string }

func (c Cgroup) file(controller, v1, v2 string) (string, error) {
	if dir, ok := c.Dirs[controller]; ok && v1 != "" {
		return filepath.Join(dir, v1), nil
	}
	if dir, ok := c.Dirs[""]; ok && v2 != "" {
		return filepath.Join(dir, v2), nil
	}
	return "", fmt.Errorf("cgroup has no controller %s: %w", controller, target.ErrUnavailable)
}

func (c Cgroup) number(controller, v1, v2 string) (int64, error) {
	path, err := c.file(controller, v1, v2)
	if err != nil {
		return 0, err
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(body))
	if text == "max" {
		return Unlimited, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	return min(n, Unlimited), nil
}

// member reads one line of a flat keyed file, 0 when the file lacks the key.
func (c Cgroup) member(controller, v1, v2, key string) (int64, error) {
	path, err := c.file(controller, v1, v2)
	if err != nil {
		return 0, err
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(body), "\n") {
		if name, value, ok := strings.Cut(line, " "); ok && name == key {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, nil
}

// PIDs is the number of host tasks, threads included.
func (c Cgroup) PIDs() (int64, error) { return c.number("pids", "pids.current", "pids.current") }

// PIDsLimit is pids.max, [Unlimited] when it is not set.
func (c Cgroup) PIDsLimit() (int64, error) { return c.number("pids", "pids.max", "pids.max") }

// PIDsRefused is how often the kernel refused a task because of the limit.
func (c Cgroup) PIDsRefused() (int64, error) {
	return c.member("pids", "pids.events", "pids.events", "max")
}

// Memory is the usage in bytes.
func (c Cgroup) Memory() (int64, error) {
	return c.number("memory", "memory.usage_in_bytes", "memory.current")
}

// MemoryLimit is the hard limit in bytes, [Unlimited] when it is not set. cgroup v1 says "not
// set" by a number near 2^63.
func (c Cgroup) MemoryLimit() (int64, error) {
	return c.number("memory", "memory.limit_in_bytes", "memory.max")
}

// MemoryPeak is the highest usage in bytes since the cgroup was made. memory.peak needs Linux 5.19.
func (c Cgroup) MemoryPeak() (int64, error) {
	return c.number("memory", "memory.max_usage_in_bytes", "memory.peak")
}

// MemoryAndSwap is the highest usage of memory and swap together on v1, the usage at this moment
// on v2. Without swap accounting the files are absent: an error that wraps [fs.ErrNotExist].
func (c Cgroup) MemoryAndSwap() (int64, error) {
	if _, ok := c.Dirs["memory"]; ok {
		return c.number("memory", "memory.memsw.max_usage_in_bytes", "")
	}
	memory, err := c.Memory()
	if err != nil {
		return 0, err
	}
	swap, err := c.number("memory", "", "memory.swap.current")
	return memory + swap, err
}

// MemoryRefused is how often the limit was hit: the event "max" on v2. On v1 it is failcnt, of memory
// and of memory with swap: where both limits are equal, the kernel asks for the second first.
func (c Cgroup) MemoryRefused() (int64, error) {
	if _, ok := c.Dirs["memory"]; !ok {
		return c.member("memory", "", "memory.events", "max")
	}
	n, err := c.number("memory", "memory.failcnt", "")
	if err != nil {
		return 0, err
	}
	swap, err := c.number("memory", "memory.memsw.failcnt", "")
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil // no swap accounting
	}
	return n + swap, err
}

// OOMKills is how many tasks the kernel killed because of the limit.
func (c Cgroup) OOMKills() (int64, error) {
	return c.member("memory", "memory.oom_control", "memory.events", "oom_kill")
}

// Procs lists the host pids in the cgroup, its children not included.
func (c Cgroup) Procs() ([]int, error) {
	path, err := c.file("pids", "cgroup.procs", "cgroup.procs")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var pids []int
	for s := bufio.NewScanner(f); s.Scan(); {
		pid, err := strconv.Atoi(s.Text())
		if err != nil {
			return nil, fmt.Errorf("read cgroup.procs: %w", err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Exists says whether a directory of the container's own is there. On a host with v1 controllers
// and a v2 tree beside them the v2 directory may be shared with the engine, so it counts only alone.
func (c Cgroup) Exists() bool {
	for _, controller := range []string{"pids", "memory", ""} {
		dir, ok := c.Dirs[controller]
		if !ok || controller == "" && len(c.Dirs) > 1 {
			continue
		}
		if _, err := os.Lstat(dir); err == nil {
			return true
		}
	}
	return false
}

// CgroupPeaks is what a watch saw: the highest values of every sample, and how often the kernel
// refused or killed since the watch began.
type CgroupPeaks struct {
	Samples       int64
	PIDs          int64
	Memory        int64 // the kernel's peak too, where it has one: since the cgroup was made
	MemoryPeak    int64 // the kernel's alone: no charge on trial is in it; 0 where it has none
	MemoryAndSwap int64 // 0 without swap accounting
	PIDsRefused   int64
	MemoryRefused int64
	MemoryKills   int64
	Gone          bool // the cgroup vanished while it was watched

	tasks, refused, oom int64 // the counters when the watch began
}

// Watch takes a first sample and goes on every period until the returned stop is called. A cgroup
// that ends keeps the peaks seen until then; the kernel's own peak is read in every sample too.
func (c Cgroup) Watch(ctx context.Context, period time.Duration) (stop func() CgroupPeaks) {
	ctx, cancel := context.WithCancel(ctx)
	var peaks CgroupPeaks
	c.sample(&peaks)
	peaks.tasks, peaks.refused, peaks.oom = peaks.PIDsRefused, peaks.MemoryRefused, peaks.MemoryKills
	var wg sync.WaitGroup
	wg.Go(func() {
		for sleep(ctx, period) == nil {
			c.sample(&peaks)
		}
	})
	return sync.OnceValue(func() CgroupPeaks {
		cancel()
		wg.Wait()
		c.sample(&peaks)
		peaks.PIDsRefused -= peaks.tasks
		peaks.MemoryRefused -= peaks.refused
		peaks.MemoryKills -= peaks.oom
		return peaks
	})
}

func (c Cgroup) sample(p *CgroupPeaks) {
	read := func(f func() (int64, error), into *int64) {
		n, err := f()
		if err == nil {
			*into = max(*into, n)
		} else if errors.Is(err, fs.ErrNotExist) && !c.Exists() {
			p.Gone = true
		}
	}
	read(c.PIDs, &p.PIDs)
	read(c.PIDsRefused, &p.PIDsRefused)
	read(c.Memory, &p.Memory)
	read(c.MemoryPeak, &p.MemoryPeak)
	read(c.MemoryAndSwap, &p.MemoryAndSwap)
	read(c.MemoryRefused, &p.MemoryRefused)
	read(c.OOMKills, &p.MemoryKills)
	p.Memory = max(p.Memory, p.MemoryPeak)
	p.Samples++
}
