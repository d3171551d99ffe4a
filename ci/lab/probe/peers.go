// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// What a sentry says of the peer of a unix socket, unix(7), and whose word it takes for it.

// acceptWithin bounds the wait for a part that connects.
const acceptWithin = 5 * time.Second

// peerCredentials says whether SO_PEERCRED names the process that connected, while it lives.
func peerCredentials(dir string) error {
	return withPeer(filepath.Join(dir, "alive"), false, samePid)
}

// exitedPeerCredentials says whether SO_PEERCRED still names that process once it has exited and was reaped. Some
// sentries say pid 0 then, others anything.
func exitedPeerCredentials(dir string) error {
	return withPeer(filepath.Join(dir, "exited"), true, samePid)
}

// exitedPeerPidfd says whether SO_PEERPIDFD gives a descriptor for a peer that has exited, as Linux 6.16 does. ESRCH or EINVAL
// of an older kernel are answers too.
func exitedPeerPidfd(dir string) error {
	return withPeer(filepath.Join(dir, "pidfd"), true, func(fd, _ int) error {
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
		if err == nil {
			unix.Close(pidfd)
		}
		return err
	})
}

func samePid(fd, pid int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	if int(cred.Pid) != pid || int(cred.Uid) != os.Getuid() || int(cred.Gid) != os.Getgid() {
		return errNo
	}
	return nil
}

// withPeer listens at path, has a part connect, and hands the accepted end to look. With exited the part has ended
// and was waited for before that.
func withPeer(path string, exited bool, look func(fd, pid int) error) error {
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(l)
	if err := errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: path}), unix.Listen(l, 1)); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", partPeer, path)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	leave := func() { stdin.Close(); cmd.Wait() } // its status is of no interest
	defer leave()
	poll := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
	for end := time.Now().Add(acceptWithin); ; {
		n, err := unix.Poll(poll, 100)
		if n == 1 {
			break
		}
		if err != nil && err != unix.EINTR || time.Now().After(end) {
			return fmt.Errorf("nobody connects: %w", err)
		}
	}
	fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if exited {
		leave()
	}
	return look(fd, cmd.Process.Pid)
}

// peer connects to path and stays until its standard input ends.
func peer(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	os.Stdin.Read(make([]byte, 1))
	return nil
}

// listenerCredentials says whether a connecting process can tell who listens: without it no client can know its server.
func listenerCredentials(dir string) error {
	path := filepath.Join(dir, "listener")
	var pair [2]int
	for i := range pair {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		pair[i] = fd
	}
	addr := &unix.SockaddrUnix{Name: path}
	if err := errors.Join(unix.Bind(pair[0], addr), unix.Listen(pair[0], 1), unix.Connect(pair[1], addr)); err != nil {
		return err
	}
	return samePid(pair[1], os.Getpid())
}

// forgedCredentialsRefused says whether SCM_CREDENTIALS of root is refused to a process that is not root.
func forgedCredentialsRefused() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := unix.SetsockoptInt(pair[1], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return err
	}
	forged := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: 0, Gid: 0})
	switch err := unix.Sendmsg(pair[0], []byte{1}, forged, nil, 0); {
	case err == nil:
		return errNo
	case err == unix.EPERM:
		return nil
	default:
		return err
	}
}

// abstractNames says whether any process can take an abstract name, as a squatter would. It holds whatever the filesystem's modes say.
func abstractNames() error {
	fd, err := takeName()
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// abstractNamesExclusive says whether a name that is taken cannot be taken again.
func abstractNamesExclusive() error {
	first, err := takeName()
	if err != nil {
		return err
	}
	defer unix.Close(first)
	second, err := takeName()
	switch {
	case err == nil:
		unix.Close(second)
		return errNo
	case err == unix.EADDRINUSE:
		return nil
	}
	return err
}

func takeName() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@hallmark-probe"}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// pidfdOpen and pidfdSendSignal are the two halves of what a supervisor needs to signal a process that is not its child.
func pidfdOpen() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func pidfdSendSignal() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, 0, nil, 0)
}
