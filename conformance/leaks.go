// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onsi/gomega/gleak"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/internal/proctable"
)

// footprint is what the suite's own process holds: what grows there during a case is the suite's
// fault and not the target's.
type footprint struct {
	goroutines  map[uint64]gleak.Goroutine
	descriptors map[string]string // link below /proc/self/fd -> what it is
	pooled      map[string]bool   // those links that are connections which may be kept for later
	children    map[string]string // pid and start time -> what it is; with the euid of this process
}

// Connections to a unix socket, and accepted on one, are kept for reuse by the HTTP clients and
// proxies of a driver: they come and go with the traffic, and are judged by number after a case and
// all together after the run, when the driver is closed.
const poolBound = 16

// pooledGoroutines are those that serve the kept connections.
var pooledGoroutines = []string{
	"net/http.(*Transport).dialConn", "net/http.(*Server).Serve", "net/http.(*connReader).startBackgroundRead",
}

func takeFootprint() *footprint {
	// The runtime makes its poller with the first file that it can poll: before anything is counted.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	f := &footprint{goroutines: map[uint64]gleak.Goroutine{}, descriptors: map[string]string{}, pooled: map[string]bool{}, children: map[string]string{}}
	for _, g := range gleak.Goroutines() {
		f.goroutines[g.ID] = g
	}
	f.readDescriptors()
	f.readChildren()
	return f
}

// readDescriptors names each descriptor by the target of its link, since numbers are used again.
func (f *footprint) readDescriptors() {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	seen := map[string]int{}
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // the folder's own, closed by now
		}
		seen[link]++
		key := link
		if n := seen[link]; n > 1 {
			key = fmt.Sprintf("%s, %d times", link, n)
		}
		f.descriptors[key] = key
		fd, err := strconv.Atoi(e.Name())
		if err == nil && strings.HasPrefix(link, "socket:") {
			f.descriptors[key], f.pooled[key] = describeSocket(fd, link)
		}
	}
}

// describeSocket says what a socket is connected to, and whether it may be a kept connection.
func describeSocket(fd int, link string) (what string, pooled bool) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return link, false
	}
	listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	local, _ := unix.Getsockname(fd)
	remote, _ := unix.Getpeername(fd)
	name := func(sa unix.Sockaddr) string {
		switch sa := sa.(type) {
		case *unix.SockaddrUnix:
			return sa.Name
		case *unix.SockaddrInet4:
			return fmt.Sprintf("%d.%d.%d.%d:%d", sa.Addr[0], sa.Addr[1], sa.Addr[2], sa.Addr[3], sa.Port)
		case *unix.SockaddrInet6:
			return fmt.Sprintf("[%x]:%d", sa.Addr, sa.Port)
		}
		return ""
	}
	_, isUnix := local.(*unix.SockaddrUnix)
	pooled = isUnix && kind == unix.SOCK_STREAM && listens == 0 && name(local)+name(remote) != ""
	return fmt.Sprintf("%s from %q to %q", link, name(local), name(remote)), pooled
}

// readChildren finds this process's own children that run as its user: a driver's daemon, and what
// a case started on the host and did not wait for.
func (f *footprint) readChildren() {
	table, err := proctable.Processes()
	if err != nil {
		return
	}
	for _, p := range table {
		if p.Parent == os.Getpid() && ownUser(p.Pid) {
			f.children[processKey(p)] = fmt.Sprintf("child process %d (%s) state %c", p.Pid, p.Name, p.State)
		}
	}
}

func processKey(p proctable.Process) string { return fmt.Sprintf("process %d %d", p.Pid, p.Start) }

func ownUser(pid int) bool {
	var st unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil && int(st.Uid) == os.Geteuid()
}

// since is what f has and before has not.
func (f *footprint) since(before *footprint) *footprint {
	d := &footprint{goroutines: maps.Clone(f.goroutines), descriptors: maps.Clone(f.descriptors), pooled: f.pooled, children: maps.Clone(f.children)}
	for id := range before.goroutines {
		delete(d.goroutines, id)
	}
	for link := range before.descriptors {
		delete(d.descriptors, link)
	}
	for key := range before.children {
		delete(d.children, key)
	}
	return d
}

// with is f and more, which may be nil.
func (f *footprint) with(more *footprint) *footprint {
	if more == nil {
		return f
	}
	d := f.since(&footprint{})
	maps.Copy(d.goroutines, more.goroutines)
	maps.Copy(d.descriptors, more.descriptors)
	maps.Copy(d.children, more.children)
	return d
}

// leakRule is what is let off.
type leakRule struct {
	pools   bool   // kept connections, within their bound
	records string // descriptors of files below this folder
}

// leaked lists what has come since before, but for what rule lets off; sorted.
func (f *footprint) leaked(before *footprint, rule leakRule) []string {
	d := f.since(before)
	held := 0
	for _, is := range f.pooled {
		if is {
			held++
		}
	}
	pools := rule.pools && held <= poolBound
	var allowed []any
	if pools {
		for _, creator := range pooledGoroutines {
			allowed = append(allowed, gleak.IgnoringCreator(creator))
		}
	}
	var out []string
	for _, g := range d.goroutines {
		if is, err := gleak.HaveLeaked(allowed...).Match([]gleak.Goroutine{g}); err == nil && is {
			out = append(out, fmt.Sprintf("goroutine in %s [%s], created by %s", g.TopFunction, g.State, g.CreatorFunction))
		}
	}
	for link, what := range d.descriptors {
		if !(pools && d.pooled[link] || rule.records != "" && below(link, rule.records)) {
			out = append(out, "descriptor of "+what)
		}
	}
	out = slices.AppendSeq(out, maps.Values(d.children))
	slices.Sort(out)
	return out
}

// settledLeaks waits until nothing has leaked since before, and returns what then still has.
func settledLeaks(within time.Duration, before *footprint, rule leakRule) []string {
	left, _ := settle(within, func() ([]string, error) { return takeFootprint().leaked(before, rule), nil })
	return left
}

// excuse notes what the driver holds for a daemon that it started again.
func (t *T) excuse(f *footprint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.excused = f.with(t.excused)
}

// findOwnLeaks makes the case an error when it left something in the suite's own process. In a
// process that is somebody else's, what others do there meanwhile cannot be told apart: it is logged.
func (b *bench) findOwnLeaks(t *T, before *footprint) {
	t.mu.Lock()
	before, abandoned := before.with(t.excused), t.abandoned
	t.mu.Unlock()
	if abandoned {
		return // said already, and what it holds is its own
	}
	left := settledLeaks(b.settling(), before, leakRule{pools: true})
	if len(left) == 0 {
		return
	}
	text := fmt.Sprintf("the case left %d things in the suite's own process: %s", len(left), strings.Join(left[:min(len(left), 8)], "; "))
	if b.sharing {
		t.Log("not judged in a shared process: %s", text)
		return
	}
	t.broke("suite-leak", text)
}

// daemon is what the runtime's own process holds. It is recorded, not judged.
type daemon struct{ pid, descriptors, threads int }

func (b *bench) daemon() daemon {
	if b.target.Observer == nil {
		return daemon{}
	}
	pid, err := b.target.Observer.WorkerPid()
	if err != nil {
		return daemon{}
	}
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return daemon{}
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return daemon{}
	}
	return daemon{pid, len(descriptors), len(threads)}
}

// observeDaemon records the daemon's descriptors and threads before and after the case.
func (t *T) observeDaemon(before, after daemon) {
	if before.pid == 0 || after.pid == 0 {
		return
	}
	restarted := 0
	if before.pid != after.pid {
		restarted = 1
	}
	t.Observe("daemon", map[string]int{
		"descriptorsBefore": before.descriptors, "descriptorsAfter": after.descriptors,
		"threadsBefore": before.threads, "threadsAfter": after.threads, "restarts": restarted,
	})
}
