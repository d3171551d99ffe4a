// SPDX-License-Identifier: Apache-2.0

// Command probe tries, inside a sandbox, what its kernel offers, and prints one
// JSON object: the name of each capability and "yes", "no" or an errno name.
// It owns nothing and leaves nothing; it never deduces an answer from a version.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// soPeerPidfd is SO_PEERPIDFD of asm-generic/socket.h, Linux 6.5.
const soPeerPidfd = 77

// seccompModeFilter is SECCOMP_MODE_FILTER of linux/seccomp.h.
const seccompModeFilter = 2

func main() {
	if len(os.Args) > 1 {
		os.Exit(part(os.Args[1:]))
	}
	dir, err := os.MkdirTemp("/tmp", "probe")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	answers := map[string]string{
		"sentry.openat2":                  word(openat2(dir)),
		"sentry.pidfd":                    word(pidfd()),
		"sentry.peerpidfd":                word(peerPidfd()),
		"sentry.pidfd_open":               word(pidfdOpen()),
		"sentry.pidfd_send_signal":        word(pidfdSendSignal()),
		"sentry.peercred":                 word(peerCredentials(dir)),
		"sentry.peercred_exited":          word(exitedPeerCredentials(dir)),
		"sentry.peerpidfd_exited":         word(exitedPeerPidfd(dir)),
		"sentry.peercred_listener":        word(listenerCredentials(dir)),
		"sentry.scm_credentials_checked":  word(forgedCredentialsRefused()),
		"sentry.abstract_names":           word(abstractNames()),
		"sentry.abstract_names_exclusive": word(abstractNamesExclusive()),
		"sentry.setprojid":                word(setProjectID("/workspace")),
		"sentry.subreaper":                word(subreaper(partParent)),
		"sentry.subreaper_mark_kept":      word(subreaper(partUnmark)),
		"sentry.tmpfile":                  word(tmpfile("/workspace")),
		"sentry.nofollowdir":              word(noFollowDirectory(dir)),
		"sentry.userns":                   word(userNamespace()),
		"sentry.io_uring":                 word(call(unix.SYS_IO_URING_SETUP, 1, 0)),
		"sentry.bpf":                      word(call(unix.SYS_BPF, 0, 0)),
		"sentry.memfd":                    word(memfd()),
		"sentry.no_new_privs":             word(prctlValue(unix.PR_GET_NO_NEW_PRIVS, 1)),
		"sentry.seccomp_filter":           word(prctlValue(unix.PR_GET_SECCOMP, seccompModeFilter)),
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		os.Exit(1)
	}
}

var errNo = errors.New("no")

func word(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "yes"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	default:
		return "no"
	}
}

func openat2(dir string) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func pidfd() error {
	cmd := exec.Command("/proc/self/exe", partChild)
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait() // its status is of no interest
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, 0, nil, 0)
}

func peerPidfd() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, soPeerPidfd)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// fsxattr is struct fsxattr of linux/fs.h; FS_IOC_FSGETXATTR is _IOR('X', 31, it).
type fsxattr struct {
	xflags, extsize, nextents, projid, cowextsize uint32
	_                                             [8]byte
}

// setProjectID writes back the project id that it has read: harmless where it works.
func setProjectID(dir string) error {
	f, err := os.CreateTemp(dir, ".probe")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return projectIDRoundTrip(f)
}

func tmpfile(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// noFollowDirectory says whether O_DIRECTORY|O_NOFOLLOW refuses a symbolic link to a folder, as open(2) says.
func noFollowDirectory(dir string) error {
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		return err
	}
	fd, err := unix.Open(link, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == nil {
		unix.Close(fd)
		return errNo
	}
	return nil
}

// userNamespace tries in a child: the caller must stay where it is.
func userNamespace() error {
	cmd := exec.Command("/proc/self/exe", partChild)
	cmd.SysProcAttr = newUserNamespace()
	return cmd.Run()
}

// prctlValue says whether a prctl(2) that returns a value returns want.
func prctlValue(option int, want uintptr) error {
	got, _, errno := unix.Syscall6(unix.SYS_PRCTL, uintptr(option), 0, 0, 0, 0, 0)
	switch {
	case errno != 0:
		return errno
	case got != want:
		return errNo
	default:
		return nil
	}
}

// call makes a system call with a null pointer: EFAULT is the answer of a kernel
// that has it and would serve this caller.
func call(nr, a, b uintptr) error {
	fd, _, errno := unix.Syscall(nr, a, b, 0)
	if errno == unix.EFAULT {
		return nil
	}
	if errno != 0 {
		return errno
	}
	unix.Close(int(fd))
	return nil
}

func memfd() error {
	fd, err := unix.MemfdCreate("probe", 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}
