// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// parented is a fake whose containers lie below a cgroup parent.
type parented struct {
	*fake
	parent string
}

func (p parented) CgroupParent() (string, error) { return p.parent, nil }

// runBaseline opens a fake target over an engine with one container of somebody else's.
func runBaseline(t *testing.T, parent string) (*baseline, *fakeEngine) {
	t.Helper()
	p := plan{Raw: t.TempDir(), Work: t.TempDir()}
	engine := newFakeEngine(t)
	engine.add("bystander", `{"Created":"2020-01-02T03:04:05.678Z"}`)
	time.Sleep(10 * time.Millisecond)
	if err := p.write(); err != nil {
		t.Fatal(err)
	}
	l, err := takeBaseline(p, false)
	if err != nil {
		t.Fatal(err)
	}
	l.settle = 500 * time.Millisecond
	// The driver makes one while it opens.
	engine.add("opening", fmt.Sprintf(`{"Created":%q}`, time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)))
	f := &fake{engine: engine}
	if err := l.note(t.Context(), &target.Target{Runtime: f, Observer: parented{f, parent}}); err != nil {
		t.Fatal(err)
	}
	return l, engine
}

func TestWhatARunLeavesIsFound(t *testing.T) {
	// A parent of the run's own, beside somebody else's, in whatever hierarchy takes a folder.
	base := "/hallmark-test-" + randomHex(8)
	own := base + "/" + randomHex(4)
	hierarchy := cgroupFolder(t, base)
	for _, dir := range []string{base, base + "/somebody", own} {
		if err := os.Mkdir(filepath.Join(hierarchy, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Rmdir(filepath.Join(hierarchy, dir)) })
	}
	tests := []struct {
		name  string
		leave func(t *testing.T, l *baseline, e *fakeEngine)
		text  string // "" when nothing may be found
	}{
		{"nothing", func(t *testing.T, l *baseline, e *fakeEngine) {}, ""},
		{"what was there goes", func(t *testing.T, l *baseline, e *fakeEngine) { e.remove("bystander") }, ""},
		{"container", func(t *testing.T, l *baseline, e *fakeEngine) { e.add("late", "{}") }, "late"},
		{"container made while opening", func(t *testing.T, l *baseline, e *fakeEngine) {
			e.add("opening", "{}")
		}, "opening"},
		{"mount", func(t *testing.T, l *baseline, e *fakeEngine) {
			if err := unix.Mount("left", l.plan.Work, "tmpfs", 0, "size=64k"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Unmount(l.plan.Work, 0) })
		}, "mount " + os.TempDir()},
		{"cgroup", func(t *testing.T, l *baseline, e *fakeEngine) {
			dir := filepath.Join(hierarchy, own, "c1")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Rmdir(dir) })
		}, own + "/c1"},
		{"the run's own cgroup parent", func(t *testing.T, l *baseline, e *fakeEngine) {
			if err := os.Mkdir(filepath.Join(hierarchy, own), 0o755); err != nil {
				t.Fatal(err)
			}
		}, own},
		{"another run's container", func(t *testing.T, l *baseline, e *fakeEngine) {
			e.add("theirs", fmt.Sprintf(`{"HostConfig":{"CgroupParent":%q}}`, base+"/beside/x"))
		}, ""},
		{"nobody's container beside another run", func(t *testing.T, l *baseline, e *fakeEngine) {
			e.add("nobodys", fmt.Sprintf(`{"HostConfig":{"CgroupParent":%q}}`, base+"/besides"))
		}, "nobodys"},
		{"another run's cgroup", func(t *testing.T, l *baseline, e *fakeEngine) {
			for _, dir := range []string{"/beside", "/beside/x"} {
				if err := os.Mkdir(filepath.Join(hierarchy, base+dir), 0o755); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Rmdir(filepath.Join(hierarchy, base+dir)) })
			}
		}, ""},
		{"the engine does not answer", func(t *testing.T, l *baseline, e *fakeEngine) { e.vanish() }, "last inventory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.Mkdir(filepath.Join(hierarchy, own), 0o755); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
			l, e := runBaseline(t, own)
			e.remove("opening")
			if !strings.Contains(tt.text, own+"/c1") { // a driver removes its parent when it closes
				if err := unix.Rmdir(filepath.Join(hierarchy, own)); err != nil {
					t.Fatal(err)
				}
			}
			tt.leave(t, l, e)
			err := l.hostLeft([]scope{{CgroupParent: own, WorkDir: l.plan.Work}}, func() []scope { return []scope{{CgroupParent: base + "/beside"}} })
			switch {
			case tt.text == "" && err != nil:
				t.Errorf("found %v", err)
			case tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)):
				t.Errorf("found %v, want %q", err, tt.text)
			}
		})
	}
}

// cgroupFolder finds a hierarchy of this host in which a folder can be made.
func cgroupFolder(t *testing.T, name string) string {
	t.Helper()
	roots, err := hierarchies(cgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(roots) - 1; i >= 0; i-- {
		if os.Mkdir(filepath.Join(roots[i], name), 0o755) == nil {
			if _, err := os.Stat(filepath.Join(roots[i], name, "cgroup.procs")); err == nil {
				unix.Rmdir(filepath.Join(roots[i], name))
				return roots[i]
			}
		}
		unix.Rmdir(filepath.Join(roots[i], name))
	}
	t.Fatal("no cgroup hierarchy takes a folder")
	return ""
}

// What the suite's own process holds after the target was closed is found, kept connections included;
// the files of the run's records are not.
func TestWhatTheSuiteHoldsIsFound(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	tests := []struct {
		name string
		hold func(t *testing.T, l *baseline, e *fakeEngine)
		text string
	}{
		{"nothing", func(*testing.T, *baseline, *fakeEngine) {}, ""},
		{"record", func(t *testing.T, l *baseline, _ *fakeEngine) {
			f, err := os.Create(filepath.Join(l.plan.Raw, rowsFile))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
		}, ""},
		{"file", func(t *testing.T, l *baseline, _ *fakeEngine) {
			f, err := os.Open(l.plan.Work)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
		}, "descriptor of " + os.TempDir()},
		{"goroutine", func(*testing.T, *baseline, *fakeEngine) { go func() { <-release }() }, "goroutine in"},
		{"kept connection", func(t *testing.T, _ *baseline, e *fakeEngine) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: e.socket}); err != nil {
				t.Fatal(err)
			}
		}, "descriptor of socket"},
		{"process", func(t *testing.T, _ *baseline, _ *fakeEngine) { sleeper(t, "") }, "child process"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, e := runBaseline(t, "")
			l.own = takeFootprint() // the fake engine serves in this process
			tt.hold(t, l, e)
			err := l.ownLeft()
			switch {
			case tt.text == "" && err != nil:
				t.Errorf("found %v", err)
			case tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)):
				t.Errorf("found %v, want %q", err, tt.text)
			}
			l.shared = true
			if err := l.ownLeft(); err != nil {
				t.Errorf("in a process of others: %v", err)
			}
		})
	}
}

// A kept connection more or less is let off after a case, a pile of them is not, and neither is any
// other socket.
func TestKeptConnectionsAreLetOffWithinABound(t *testing.T) {
	e := newFakeEngine(t)
	var open []int
	t.Cleanup(func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	})
	dial := func() {
		t.Helper()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, fd)
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: e.socket}); err != nil {
			t.Fatal(err)
		}
	}
	before := takeFootprint()
	dial()
	if left := takeFootprint().leaked(before, leakRule{pools: true}); len(left) > 0 {
		t.Errorf("one connection: %q", left)
	}
	if left := takeFootprint().leaked(before, leakRule{}); len(left) == 0 {
		t.Error("one connection after the run is let off")
	}
	for range poolBound {
		dial()
	}
	if left := takeFootprint().leaked(before, leakRule{pools: true}); len(left) <= poolBound {
		t.Errorf("%d connections: %q", len(open), left)
	}
	for _, fd := range open {
		unix.Close(fd)
	}
	open = nil
	for name, domain := range map[string]int{"inet": syscall.AF_INET, "inet6": syscall.AF_INET6, "netlink": syscall.AF_NETLINK} {
		fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if left := settledLeaks(time.Second, before, leakRule{pools: true}); len(left) == 0 {
			t.Errorf("a socket of family %s is let off", name)
		}
		unix.Close(fd)
	}
}
