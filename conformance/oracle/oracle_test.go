// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func TestTreeShowsWhatChanged(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"content", "mode", "gone", "sub/same"} {
		write(name, "one", 0o600)
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	before, err := HashTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := HashTree(dir); err != nil || len(before.Diff(again)) != 0 {
		t.Fatalf("an untouched tree differs: %v, %v", before.Diff(again), err)
	}
	st, err := os.Stat(filepath.Join(dir, "content"))
	if err != nil {
		t.Fatal(err)
	}
	write("content", "two", 0o600)
	if err := errors.Join(
		os.Chtimes(filepath.Join(dir, "content"), st.ModTime(), st.ModTime()),
		os.Chmod(filepath.Join(dir, "mode"), 0o640),
		os.Remove(filepath.Join(dir, "gone")),
		os.Remove(filepath.Join(dir, "link")),
		os.Symlink("b", filepath.Join(dir, "link")),
		os.Symlink("/etc", filepath.Join(dir, "new")),
	); err != nil {
		t.Fatal(err)
	}
	after, err := HashTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	diff := before.Diff(after)
	for _, want := range []string{"! content", "! mode", "- gone", "! link", "+ new"} {
		if !slices.Contains(diff, want) {
			t.Errorf("%q is not in %v", want, diff)
		}
	}
	if slices.Contains(diff, "! sub/same") || slices.ContainsFunc(diff, func(d string) bool { return strings.Contains(d, "new/") }) {
		t.Errorf("an unchanged file or a link's target is in %v", diff)
	}
}

func TestHeartbeatTellsLifeFromDeath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beat")
	ctx := t.Context()
	if err := WaitBeating(ctx, path, 1, 100*time.Millisecond); err == nil {
		t.Error("a file that does not exist is called beating")
	}
	if s, err := WatchStill(ctx, path, BeatPeriod, 4*BeatPeriod); err != nil || s.Still || !s.Gone {
		t.Errorf("a file that does not exist is seen as %+v, %v", s, err)
	}
	beats, err := WatchBeats(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "while :; do printf . >>\"$0\"; sleep 0.05; done", path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if err := WaitBeating(ctx, path, 3, 5*time.Second); err != nil {
		t.Error(err)
	}
	if n := beats(); n < 2 || beats() != n {
		t.Errorf("%d beats were counted, then %d", n, beats())
	}
	s, err := WatchStill(ctx, path, 10*BeatPeriod, 20*BeatPeriod)
	if err != nil || s.Still || s.Beats == 0 {
		t.Errorf("a living writer is seen as %+v, %v", s, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // killed
	s, err = WatchStill(ctx, path, 10*BeatPeriod, 40*BeatPeriod)
	if err != nil || !s.Still {
		t.Errorf("a dead writer is seen as %+v, %v", s, err)
	}
}

func TestUsageFollowsAWrite(t *testing.T) {
	dir := t.TempDir()
	before, err := WalkUsage(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "block"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), os.Link(f.Name(), filepath.Join(dir, "second name")), os.Truncate(f.Name(), 1<<20)); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	if err := sparse.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	after, err := WalkUsage(dir)
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.Bytes - before.Bytes; grown < 1<<20 || grown > 2<<20 {
		t.Errorf("1 MiB with two names and a sparse file are %d bytes", grown)
	}
	if grown := after.Inodes - before.Inodes; grown != 2 {
		t.Errorf("two inodes with three names are %d", grown)
	}
	u, err := StatUsage(dir)
	if err != nil || u.BytesTotal <= 0 || u.Bytes <= 0 || u.Device == 0 {
		t.Errorf("statfs gives %+v, %v", u, err)
	}
}

// fakeCgroup writes the files of one layout.
func fakeCgroup(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCgroupReadsBothLayouts(t *testing.T) {
	v1pids := fakeCgroup(t, map[string]string{"pids.current": "12\n", "pids.max": "64\n", "pids.events": "max 3\n", "cgroup.procs": "1\n22\n"})
	v1mem := fakeCgroup(t, map[string]string{"memory.usage_in_bytes": "100\n", "memory.limit_in_bytes": "200\n", "memory.max_usage_in_bytes": "150\n", "memory.failcnt": "7\n", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"})
	v2 := fakeCgroup(t, map[string]string{"pids.current": "12\n", "pids.max": "64\n", "pids.events": "max 3\n", "cgroup.procs": "1\n22\n",
		"memory.current": "100\n", "memory.max": "200\n", "memory.peak": "150\n", "memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\n"})
	for name, c := range map[string]Cgroup{"v1": {map[string]string{"pids": v1pids, "memory": v1mem}}, "v2": {map[string]string{"": v2}}} {
		t.Run(name, func(t *testing.T) {
			for _, row := range []struct {
				what string
				read func() (int64, error)
				want int64
			}{
				{"pids", c.PIDs, 12}, {"pids limit", c.PIDsLimit, 64}, {"pids refused", c.PIDsRefused, 3}, {"memory", c.Memory, 100},
				{"memory limit", c.MemoryLimit, 200}, {"memory peak", c.MemoryPeak, 150}, {"memory refused", c.MemoryRefused, 7}, {"kills", c.OOMKills, 2},
			} {
				if got, err := row.read(); err != nil || got != row.want {
					t.Errorf("%s is %d, %v; want %d", row.what, got, err, row.want)
				}
			}
			if pids, err := c.Procs(); err != nil || !slices.Equal(pids, []int{1, 22}) {
				t.Errorf("procs are %v, %v", pids, err)
			}
		})
	}
}

func TestCgroupUnlimitedAndAbsent(t *testing.T) {
	dir := fakeCgroup(t, map[string]string{"pids.max": "max\n", "memory.limit_in_bytes": "9223372036854771712\n", "pids.current": "x\n"})
	c := Cgroup{map[string]string{"pids": dir, "memory": dir}}
	if n, err := c.PIDsLimit(); err != nil || n != Unlimited {
		t.Errorf("max is read as %d, %v", n, err)
	}
	if n, err := c.MemoryLimit(); err != nil || n != Unlimited {
		t.Errorf("the v1 word for no limit is read as %d, %v", n, err)
	}
	if _, err := c.PIDs(); err == nil {
		t.Error("garbage is read as a number")
	}
	if _, err := (Cgroup{}).PIDs(); !errors.Is(err, target.ErrUnavailable) {
		t.Errorf("of a missing controller: %v", err)
	}
}

func TestCgroupCPUReadsBothLayouts(t *testing.T) {
	cpu := fakeCgroup(t, map[string]string{"cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 77\n"})
	acct := fakeCgroup(t, map[string]string{"cpuacct.usage": "1500000000\n"})
	v2 := fakeCgroup(t, map[string]string{"cpu.stat": "usage_usec 1500000\nuser_usec 1\nnr_periods 9\nnr_throttled 4\nthrottled_usec 77\n"})
	for name, c := range map[string]Cgroup{"v1": {map[string]string{"cpu": cpu, "cpuacct": acct}}, "v2": {map[string]string{"": v2}}} {
		used, err := c.CPUTime()
		if err != nil || used != 1500*time.Millisecond {
			t.Errorf("%s: CPU time is %s, %v", name, used, err)
		}
		if n, err := c.Throttled(); err != nil || n != 4 {
			t.Errorf("%s: throttled %d, %v", name, n, err)
		}
	}
	if _, err := (Cgroup{map[string]string{"cpu": cpu}}).CPUTime(); !errors.Is(err, target.ErrUnavailable) {
		t.Error("a missing controller is read")
	}
}

func TestDescriptorsFollowWhatIsOpen(t *testing.T) {
	self := os.Getpid()
	before, err := Descriptors(self)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	after, err := Descriptors(self)
	if err != nil || after < before+50 || after > before+60 {
		t.Errorf("50 open files are %d beside %d, %v", after, before, err)
	}
	most, sum, err := MostDescriptors([]int{self, self, -1})
	if err != nil || most < before+50 || sum < 2*(before+50) {
		t.Errorf("most %d, sum %d, %v", most, sum, err)
	}
	if n, err := OpenFiles(); err != nil || n < after {
		t.Errorf("the host has %d open files, this process %d, %v", n, after, err)
	}
}

func TestPreferredThreads(t *testing.T) {
	for name, tt := range map[string]struct {
		argv []string
		want bool
	}{"as others": {[]string{"/bin/sleep", "60"}, false}, "lower": {[]string{"nice", "-n", "5", "/bin/sleep", "60"}, false}, "higher": {[]string{"nice", "-n", "-5", "/bin/sleep", "60"}, true}} {
		cmd := exec.Command(tt.argv[0], tt.argv[1:]...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		var list []string
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			p, err := ReadProcess(cmd.Process.Pid)
			if err == nil && p.Name == "sleep" {
				break // nice(1) has become it
			}
		}
		list, threads, err := Preferred([]int{cmd.Process.Pid, -1})
		if err != nil || threads != 1 || (len(list) > 0) != tt.want {
			t.Errorf("%s: %q of %d threads, %v", name, list, threads, err)
		}
	}
}

func TestCgroupWatchKeepsPeaksOfAGroupThatEnds(t *testing.T) {
	dir := fakeCgroup(t, map[string]string{"pids.current": "5\n", "pids.events": "max 0\n"})
	c := Cgroup{map[string]string{"pids": dir}}
	stop := c.Watch(t.Context(), 2*time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	if err := os.WriteFile(filepath.Join(dir, "pids.current"), []byte("90\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if p := stop(); p.PIDs != 90 || !p.Gone || p.Samples < 3 {
		t.Errorf("peaks are %+v", p)
	}
}

func TestCgroupWatchCountsFromItsBeginning(t *testing.T) {
	dir := fakeCgroup(t, map[string]string{"memory.usage_in_bytes": "900\n", "memory.max_usage_in_bytes": "800\n", "memory.memsw.max_usage_in_bytes": "950\n",
		"memory.failcnt": "30\n", "memory.memsw.failcnt": "10\n", "memory.oom_control": "oom_kill 4\n", "pids.current": "1\n", "pids.events": "max 7\n"})
	c := Cgroup{map[string]string{"pids": dir, "memory": dir}}
	stop := c.Watch(t.Context(), time.Hour)
	for name, body := range map[string]string{"memory.memsw.failcnt": "13\n", "memory.oom_control": "oom_kill 5\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := stop()
	if p.MemoryRefused != 3 || p.MemoryKills != 1 || p.PIDsRefused != 0 {
		t.Errorf("what was counted before the watch counts: %+v", p)
	}
	if p.Memory != 900 || p.MemoryPeak != 800 || p.MemoryAndSwap != 950 {
		t.Errorf("peaks are %+v", p)
	}
}

func TestCredentialsAndMounts(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532, Groups: []uint32{7}}}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start (this test needs root): %v", err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	lines, err := Credentials(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Uid": "65532 65532 65532 65532", "Groups": "7", "CapEff": "0000000000000000", "NoNewPrivs": "0"} {
		if lines[name] != want {
			t.Errorf("%s is %q, want %q", name, lines[name], want)
		}
	}
	if _, err := Credentials(-1); err == nil {
		t.Error("a process that does not exist has credentials")
	}
	dir := t.TempDir()
	if err := syscall.Mount("a-source", dir, "tmpfs", syscall.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(dir, 0)
	mounts, err := Mounts(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(mounts, func(m Mount) bool { return m.Point == dir })
	if i < 0 || mounts[i].Source != "a-source" || mounts[i].Type != "tmpfs" || mounts[i].Root != "/" || !strings.Contains(mounts[i].Options, "noexec") {
		t.Errorf("the mount is seen as %d of %+v", i, mounts)
	}
}

func TestBackingIsTheFileBehindALoopDevice(t *testing.T) {
	if _, _, found, err := Backing(t.TempDir()); err != nil || found {
		t.Errorf("a plain folder has a backing file: %v, %v", found, err)
	}
	if _, _, _, err := Backing("/nonexistent/hallmark"); err == nil {
		t.Error("a path that does not exist has a backing file")
	}
}

func TestProcessTable(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	table, err := Processes()
	if err != nil {
		t.Fatal(err)
	}
	p, ok := table[cmd.Process.Pid]
	if !ok || p.Parent != os.Getpid() || p.Start == 0 {
		t.Errorf("the child is seen as %+v, %v", p, ok)
	}
	running, err := ExeDigest(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	// The child may not have called execve(2) yet when Start returns on some systems; it has here.
	file, err := FileDigest("/bin/sleep")
	if err != nil || running != file {
		t.Errorf("the child executes %s, its file is %s, %v", running, file, err)
	}
	if len(Namespaces([]int{cmd.Process.Pid})) < 5 || len(Namespaces([]int{-1})) != 0 {
		t.Error("namespaces are not read")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // killed
	if table, err = Processes(); err != nil {
		t.Fatal(err)
	}
	if now, ok := table[cmd.Process.Pid]; ok && now.Start == p.Start {
		t.Error("the ended child is still seen")
	}
}

func TestMemoryPeakSurvivesTheRelease(t *testing.T) {
	const size = 32 << 20
	if err := ResetPeak(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	before, _, err := ResidentMemory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := TouchAndRelease(size); err != nil {
		t.Fatal(err)
	}
	_, peak, err := ResidentMemory(os.Getpid())
	if err != nil || peak-before < size*3/4 {
		t.Errorf("%d bytes raised the peak by %d, %v", size, peak-before, err)
	}
	if _, _, err := ResidentMemory(-1); err == nil {
		t.Error("a process that does not exist has memory")
	}
}

func TestProbeCountsStallsAndErrors(t *testing.T) {
	n := 0
	stop := Probe(t.Context(), time.Millisecond, 30*time.Millisecond, func(ctx context.Context) error {
		n++
		switch n {
		case 3:
			time.Sleep(20 * time.Millisecond)
		case 5:
			return errors.New("planted")
		case 6:
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	time.Sleep(200 * time.Millisecond)
	l := stop()
	if l.N < 10 || l.Errors != 2 || l.FirstError != "planted" || l.Max < 20*time.Millisecond || l.P50 > 10*time.Millisecond {
		t.Errorf("latencies are %+v", l)
	}
	if again := stop(); again != l {
		t.Errorf("the second stop gives %+v", again)
	}
}

func TestHostProbeLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	op, done, err := HostProbe(dir, "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if err := op(t.Context()); err != nil {
		t.Error(err)
	}
	bad, badDone, err := HostProbe(dir, "/bin/false")
	if err != nil {
		t.Fatal(err)
	}
	if err := bad(t.Context()); err == nil {
		t.Error("a program that fails is a good probe")
	}
	if err := errors.Join(done(), badDone()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}
