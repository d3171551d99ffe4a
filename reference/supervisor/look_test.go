// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// lookedTree is a folder of the tenant's with what a walk can meet. below is what only root may search.
func lookedTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for dir := root; dir != "/"; dir = filepath.Dir(dir) {
		if strings.HasPrefix(dir, os.TempDir()+"/") {
			os.Chmod(dir, 0o755)
		}
	}
	err := errors.Join(
		os.MkdirAll(root+"/a/b", 0o755), os.WriteFile(root+"/a/b/file", nil, 0o644),
		os.MkdirAll(root+"/below", 0o755), os.WriteFile(root+"/below/file", nil, 0o644), os.Chmod(root+"/below", 0o700),
		os.Symlink("below", root+"/link"), os.Symlink("/below/file", root+"/a/last"), unix.Mkfifo(root+"/a/fifo", 0o644),
		os.MkdirAll(root+"/"+strings.Repeat("d/", 1500)+"end", 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// testLooker is a looker whose thread ends with the test.
func testLooker(t *testing.T, walk func([]byte, time.Time) syscall.Errno) *looker {
	t.Helper()
	tid := make(chan int, 1)
	first := true
	l, err := newLooker(func(p []byte, until time.Time) syscall.Errno {
		if first {
			first = false
			tid <- unix.Gettid()
			return 0
		}
		return walk(p, until)
	})
	if err != nil {
		t.Fatal(err)
	}
	done, _ := l.look([][]byte{[]byte("a")})
	done()
	task := "/proc/self/task/" + strconv.Itoa(<-tid)
	t.Cleanup(func() {
		close(l.jobs)
		eventually(t, "end of the thread", func() bool { _, err := os.Stat(task); return errors.Is(err, os.ErrNotExist) })
	})
	return l
}

// A walk goes as far as there is something, follows no link, waits for nothing, and reaches what the tenant may
// reach only. It leaves no descriptor open.
func TestWalk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
	l := testLooker(t, walkBelow(lookedTree(t)))
	open := func() int { names, _ := os.ReadDir("/proc/self/fd"); return len(names) }
	before := open()
	for _, tt := range []struct {
		path string
		want syscall.Errno
	}{
		{"a", 0}, {"a/b/file", 0}, {"a/last", 0}, {"link", 0}, {"below", 0}, {strings.Repeat("d/", 1500) + "end", 0},
		{"none", 0}, {"a/none", 0}, {"none/b", 0}, // nothing is there
		{"a/b/file/x", 0}, {"a/fifo", 0}, {"a/fifo/x", 0}, // no folder
		{"link/file", 0},            // followed, it would be the next one's answer
		{"below/file", unix.EACCES}, // root would find it
		{"a/" + strings.Repeat("n", 256), unix.ENAMETOOLONG}, // the kernel's own refusals
		{strings.Repeat("n", 256) + "/a", unix.ENAMETOOLONG},
	} {
		done, busy := l.look([][]byte{[]byte(tt.path)})
		if busy {
			t.Fatalf("%.20q: busy", tt.path)
		}
		if e := done(); e != tt.want {
			t.Errorf("%.20q: %v, want %v", tt.path, e, tt.want)
		}
	}
	done, _ := l.look([][]byte{[]byte("below/file"), []byte("a"), []byte(strings.Repeat("n", 256))})
	if e := done(); e != unix.EACCES {
		t.Errorf("of several: %v, want the first one's", e)
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	if e := walk("/", []byte("proc/self"), time.Now().Add(-time.Second)); e != unix.ETIMEDOUT {
		t.Errorf("after its time: %v", e)
	}
}

// The thread of the looks has the tenant's authority over files and none beyond it, no other thread has, and it
// cannot be signalled or traced by the tenant: its real and saved ids are root's.
func TestLookerActsAsTenant(t *testing.T) {
	tids := make(chan int, 1)
	l := testLooker(t, func([]byte, time.Time) syscall.Errno { tids <- unix.Gettid(); return 0 })
	var threads []int
	for range 2000 { // the same one each time, none is made for a look; and the slot is free when one has its answer
		done, busy := l.look([][]byte{[]byte("a")})
		if busy || done() != 0 {
			t.Fatal("no look")
		}
		threads = append(threads, <-tids)
	}
	for _, tid := range threads {
		if tid != threads[0] || tid == os.Getpid() {
			t.Fatalf("thread %d, then %d, of %d", threads[0], tid, os.Getpid())
		}
	}
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(tasks) < 3 {
		t.Fatal(tasks, err)
	}
	seen := false
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // ended meanwhile
		}
		ids, none := "0\t0\t0\t0", false
		if filepath.Base(filepath.Dir(task)) == strconv.Itoa(threads[0]) {
			ids, none, seen = "0\t65532\t0\t65532", true, true
		}
		for _, line := range []string{"Uid:\t" + ids, "Gid:\t" + ids} {
			if !bytes.Contains(b, []byte("\n"+line+"\n")) {
				t.Errorf("%s has no line %q", task, line)
			}
		}
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
			if none && !bytes.Contains(b, []byte("\n"+set+":\t0000000000000000\n")) {
				t.Errorf("%s has capabilities left in %s", task, set)
			}
		}
		if none && !bytes.Contains(b, []byte("\nGroups:\t \n")) {
			t.Errorf("%s has groups", task)
		}
	}
	if !seen {
		t.Error("the thread was not looked at")
	}
}

// A look that the kernel keeps is answered in time, refuses others meanwhile, and holds up nobody else.
func TestStuckLook(t *testing.T) {
	l, err := listenAt(t)
	if err != nil {
		t.Fatal(err)
	}
	begun, let := make(chan struct{}, 8), make(chan struct{})
	lk := testLooker(t, func([]byte, time.Time) syscall.Errno { begun <- struct{}{}; <-let; return 0 })
	a := newAudit(io.Discard)
	s := &server{audit: a, pool: &pool{audit: a}, looker: lk, slots: make(chan struct{}, maxConns)}
	done := make(chan error, 1)
	go func() { done <- s.serve(l) }()
	defer func() {
		l.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}()
	c, other := client(t, l.Addr().String()), client(t, l.Addr().String())
	began := time.Now()
	first := make(chan error, 1)
	go func() { first <- c.Look(t.Context(), []byte("a")) }()
	<-begun
	for range 3 {
		if err := other.Look(t.Context(), []byte("b")); !errors.Is(err, control.ErrBusy) {
			t.Errorf("beside it: %v", err)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > control.LookWithin { // all of this was before its end
		t.Logf("a slow machine: %v", took)
	}
	if err := <-first; !errors.Is(err, syscall.ETIMEDOUT) || time.Since(began) > 10*control.LookWithin {
		t.Errorf("it: %v after %v", err, time.Since(began))
	}
	if err := c.Look(t.Context(), []byte("b")); !errors.Is(err, control.ErrBusy) {
		t.Errorf("after its answer, before its end: %v", err)
	}
	close(let)
	eventually(t, "its end", func() bool { return c.Look(t.Context(), []byte("b")) == nil })
	for range 100 { // whoever was answered finds the slot free
		if err := c.Look(t.Context(), []byte("b")); err != nil {
			t.Fatal(err)
		}
		<-begun
	}
}

// A frame of a look that breaks its bounds ends the connection of whoever sent it, and is not served.
func TestBadLook(t *testing.T) {
	path, a := testServer(t)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f, err := control.ReadReply(conn)
	if err != nil {
		t.Fatal(err)
	}
	challenge := [control.ChallengeSize]byte(f.Payload)
	conn.Write(control.AppendRequest(nil, &challenge, 0, control.Frame{Type: control.Look, Request: 1, Payload: []byte("\x01\x00\x02..")}))
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%d %v", n, err)
	}
	eventually(t, "refused", func() bool { return a.snapshot()["refused.frame"] == 1 })
	if n := a.snapshot()["looks"]; n != 0 {
		t.Errorf("%d looks", n)
	}
}

// In a sandbox a look reaches what the tenant may reach, and is no command.
func TestLookInASandbox(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		err := errors.Join(os.MkdirAll(s.workspace+"/a/b", 0o755), os.Mkdir(s.workspace+"/roots", 0o700), os.WriteFile(s.workspace+"/roots/file", nil, 0o644))
		if err != nil {
			t.Fatal(err)
		}
		c := s.connect(t)
		before := s.stats(t, c)
		if err := c.Look(t.Context(), []byte("a/b"), []byte("none"), []byte("a/none/x")); err != nil {
			t.Error(err)
		}
		if err := c.Look(t.Context(), []byte("roots/file")); !errors.Is(err, syscall.EACCES) {
			t.Errorf("a folder of root's: %v", err)
		}
		after := s.stats(t, c)
		if after["looks"] != before["looks"]+2 || after["invocations"] != before["invocations"] || after["keepers"] != before["keepers"] {
			t.Errorf("%v, then %v", before, after)
		}
	})
}

// Where a tenant has used up what it may have of processes, a look is served all the same, as often as it is asked
// for: it needs none, and no thread.
func TestLookAtTheTaskLimit(t *testing.T) {
	limitedSandbox(t, 80, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		ended := make(chan control.Outcome, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			o, err := c.Exec(ctx, spawnOf("crowd", "full"))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("crowd: %v", err)
			}
			ended <- o
		}()
		s.awaitBeat(t, "full")
		var spawn *control.SpawnError
		_, err := c.Exec(t.Context(), spawnOf("exit", "0"))
		// A sentry counts processes of the tenant's at fork(2) only, where a command is root's still.
		if s.pid != 0 && (!errors.As(err, &spawn) || spawn.Step != control.StepFork) {
			t.Fatalf("there is room for a command: %v", err)
		}
		for range 100 {
			if err := c.Look(t.Context(), []byte("a/b")); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if o := <-ended; !o.CleanupProven || o.DescendantsKilled < 10 {
			t.Errorf("%+v", o)
		}
		must(t, c, spawnOf("exit", "0"))
	})
}
