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
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

func listenAt(t *testing.T) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

func TestParseStat(t *testing.T) {
	const tail = " S 7 5 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n"
	for _, tt := range []struct {
		name, line string
		want       stat
		bad        bool
	}{
		{"plain", "12 (sh)" + tail, stat{12, 7, 5, 'S', 1, 4242}, false},
		{"a name that looks like fields", "12 (x) Z 1 1 (y)" + tail, stat{12, 7, 5, 'S', 1, 4242}, false},
		{"a line feed in the name", "12 (x\n9)" + tail, stat{12, 7, 5, 'S', 1, 4242}, false},
		{"cut", "12 (sh) S 7", stat{}, true},
		{"no name", "12 sh S 7", stat{}, true},
		{"no number", strings.Replace("12 (sh)"+tail, " 7 ", " x ", 1), stat{}, true},
		{"empty", "", stat{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat(12, []byte(tt.line))
			if (err != nil) != tt.bad || got != tt.want {
				t.Errorf("%+v %v", got, err)
			}
		})
	}
}

func TestDeadHasNoThreadLeft(t *testing.T) {
	for _, tt := range []struct {
		fields       string
		dead, halted bool
	}{
		{"Z 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4242", true, true},
		{"Z 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 0 0 4242", true, true},
		{"Z 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 2 0 4242", false, false},
		{"X 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 2 0 4242", true, true},
		{"T 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 2 0 4242", false, true},
		{"S 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4242", false, false},
	} {
		s, err := parseStat(12, []byte("12 (x) "+tt.fields))
		if err != nil || s.dead() != tt.dead || s.halted() != tt.halted {
			t.Errorf("%q: dead %v halted %v %v", tt.fields, s.dead(), s.halted(), err)
		}
	}
}

func TestBudget(t *testing.T) {
	b := &budget{left: 10}
	for _, tt := range []struct{ stream, n, keep int }{{0, 4, 4}, {1, 4, 4}, {0, 3, 2}, {1, 5, 0}, {0, 0, 0}} {
		if got := b.take(tt.stream, tt.n); got != tt.keep {
			t.Errorf("take(%d, %d) = %d", tt.stream, tt.n, got)
		}
	}
	if b.kept != [2]uint64{6, 4} || b.dropped != [2]uint64{1, 5} {
		t.Errorf("%+v", b)
	}
}

func TestAuditNeverBlocks(t *testing.T) {
	r, w := io.Pipe() // nobody reads
	defer r.Close()
	a := newAudit(w)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			a.refuse("uid", peer{pid: 3, uid: 4, gid: 5})
		}
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("blocked")
	}
	m := a.snapshot()
	if m["refused.uid"] != 1000 || m["audit-dropped"] < 900 {
		t.Errorf("%v", m)
	}
	line := make([]byte, 256)
	n, _ := r.Read(line)
	if got := string(line[:n]); got != "hallmark-supervisor: connection refused reason=uid pid=3 uid=4 gid=5\n" {
		t.Errorf("%q", got)
	}
}

// testServer serves on a socket of this process; commands cannot run in it.
func testServer(t *testing.T) (path string, a *audit) {
	t.Helper()
	l, err := listenAt(t)
	if err != nil {
		t.Fatal(err)
	}
	a = newAudit(io.Discard)
	s := &server{audit: a, pool: &pool{audit: a}, slots: make(chan struct{}, maxConns)}
	done := make(chan error, 1)
	go func() { done <- s.serve(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String(), a
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

func client(t *testing.T, path string) *control.Client {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := control.Connect(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOtherUsersAreRefusedUnread(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
	path, a := testServer(t)
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		if strings.HasPrefix(dir, os.TempDir()+"/") {
			os.Chmod(dir, 0o777) // so that the kernel lets the connect through
		}
	}
	for _, tt := range []struct {
		reason   string
		uid, gid int
	}{{"uid", Tenant, 0}, {"gid", 0, Tenant}, {"uid", Tenant, Tenant}} {
		before := a.snapshot()
		connectAs(t, path, tt.uid, tt.gid)
		eventually(t, "refused "+tt.reason, func() bool { return a.snapshot()["refused."+tt.reason] == before["refused."+tt.reason]+1 })
		if after := a.snapshot(); after["accepted"] != before["accepted"] || after["requests"] != before["requests"] {
			t.Errorf("%v, then %v", before, after)
		}
	}
}

// connectAs connects with other ids of one thread: the kernel records the thread's.
func connectAs(t *testing.T, path string, uid, gid int) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			lockForGood()
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
				return e
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				return e
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
				return err
			}
			n, _ := unix.Read(fd, make([]byte, 1)) // ends when the server closes
			if n > 0 {
				return errors.New("the server spoke")
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestFloodOfConnections(t *testing.T) {
	path, a := testServer(t)
	c := client(t, path)
	var held []net.Conn
	for range 500 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	began := time.Now()
	if err := c.Ping(t.Context()); err != nil || time.Since(began) > time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	eventually(t, "busy", func() bool { return a.snapshot()["refused.busy"] == 500-(maxConns-1) })
	for _, conn := range held {
		conn.Close()
	}
	eventually(t, "slots free", func() bool {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		other, err := control.Connect(ctx, conn)
		if err != nil {
			return false
		}
		other.Close()
		return true
	})
}

func TestSlowAndBadPeers(t *testing.T) {
	path, a := testServer(t)
	c := client(t, path)
	ping := control.Append(nil, control.Frame{Type: control.Ping, Request: 1})
	for _, tt := range []struct {
		name, reason string
		send         []byte
		closeWrite   bool
	}{
		{"silent", "slow", nil, false},
		{"header only", "slow", ping, false},
		{"half a header", "slow", ping[:7], false},
		{"cut mid-frame", "frame", ping[:7], true},
		{"closed at once", "silent", nil, true},
		{"no such version", "frame", append([]byte{9}, ping[1:]...), false},
		{"huge", "frame", append(append([]byte{}, ping[:4]...), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1), false},
		{"a reply", "frame", control.Append(nil, control.Frame{Type: control.Pong, Request: 1}), false},
		{"wrong MAC", "mac", append(append([]byte{}, ping...), bytes.Repeat([]byte{7}, control.MACSize)...), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.ReadFull(conn, make([]byte, control.HeaderSize+control.ChallengeSize)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(tt.send); err != nil {
				t.Fatal(err)
			}
			if tt.closeWrite {
				conn.CloseWrite()
			}
			conn.SetReadDeadline(time.Now().Add(control.FirstRequestWithin + 3*time.Second))
			if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("%d %v", n, err)
			}
			eventually(t, tt.reason, func() bool { return a.snapshot()["refused."+tt.reason] > 0 })
		})
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// lockForGood binds the goroutine to a thread that ends with it: its ids are changed.
func lockForGood() { runtime.LockOSThread() }
