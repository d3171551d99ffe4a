// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Run is PID 1. It returns only when it could not start: from then on it ends with the sandbox.
func Run(stderr io.Writer) error {
	if os.Getpid() != 1 || os.Getuid() != 0 || os.Getgid() != 0 {
		return errors.New("the supervisor must be pid 1 with uid 0 and gid 0")
	}
	outlive()
	if err := harden(warmSupervisor); err != nil {
		return err
	}
	// For its own sake PID 1 need not ask for this. A kernel that refuses it could not prove the end of
	// any invocation, so nothing may start on it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("probe for subreapers: %w", err)
	}
	l, err := listen()
	if err != nil {
		return err
	}
	a := newAudit(stderr)
	r, err := newReaper(a)
	if err != nil {
		return err
	}
	lk, err := newLooker(walkBelow(Workspace))
	if err != nil {
		return err
	}
	p := &pool{reaper: r, audit: a}
	if err := p.fill(); err != nil {
		return err
	}
	s := &server{audit: a, pool: p, looker: lk, slots: make(chan struct{}, maxConns)}
	return s.serve(l)
}

// outlive takes every signal that can be taken and does nothing with it. Handlers, not SIG_IGN:
// ignored signals would be inherited by the tenant.
func outlive() {
	c := make(chan os.Signal, 16)
	signal.Notify(c)
	go func() {
		for range c {
		}
	}()
}

// listen makes the socket in a directory that only root may enter, on a tmpfs, where nobody but
// root has ever been able to put anything.
func listen() (*net.UnixListener, error) {
	if err := os.Mkdir(Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make control directory: %w", err)
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Lstat(Dir, &st), unix.Statfs(Dir, &fs)); err != nil {
		return nil, fmt.Errorf("check control directory: %w", err)
	}
	if st.Uid != 0 || st.Gid != 0 || st.Mode != unix.S_IFDIR|0o700 || fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("check control directory: mode %o uid %d gid %d filesystem %#x", st.Mode, st.Uid, st.Gid, fs.Type)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: Socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(Socket, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect control socket: %w", err)
	}
	return l, nil
}
