// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Parts that the probe plays in processes of their own.
const (
	partChild  = "child"  // ends at once
	partReaper = "reaper" // a subreaper that is not PID 1, which gets every orphan anyway
	partParent = "parent" // starts an orphan and leaves it
	partUnmark = "unmark" // clears a mark that it does not have, when its child has begun, which then does what a parent does
	partWaiter = "waiter" // that child
	partOrphan = "orphan" // says whose child it has become
	partPeer   = "peer"   // connects to the path that follows, and stays until its standard input ends
)

func part(args []string) int {
	var err error
	switch args[0] {
	case partChild:
	case partReaper:
		if len(args) == 2 {
			err = reaper(args[1])
		}
	case partParent:
		err = leaveOrphan()
	case partUnmark:
		err = unmark()
	case partWaiter:
		os.Stdin.Read(make([]byte, 1)) // ends when the other end is closed
		err = leaveOrphan()
	case partOrphan:
		first := os.Getppid()
		for end := time.Now().Add(2 * time.Second); os.Getppid() == first && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Print(os.Getppid())
	case partPeer:
		if len(args) == 2 {
			err = peer(args[1])
		}
	default:
		err = fmt.Errorf("no part %q", args[0])
	}
	if err != nil {
		fmt.Fprint(os.Stderr, word(err))
		return 1
	}
	return 0
}

func leaveOrphan() error {
	orphan := exec.Command("/proc/self/exe", partOrphan)
	orphan.Stdout = os.Stdout
	return orphan.Start()
}

// unmark clears its own mark of a subreaper, which on some kernels clears what its child has from a
// subreaper above both, and lets the child go on.
func unmark() error {
	child := exec.Command("/proc/self/exe", partWaiter)
	child.Stdout = os.Stdout
	in, err := child.StdinPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		return err
	}
	in.Close()
	return child.Wait()
}

// reaper asks to be one and answers "yes" when it was given an orphan, which the part of that name leaves. A
// kernel that accepts the call may still give orphans to PID 1.
func reaper(leaver string) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	out, err := exec.Command("/proc/self/exe", leaver).Output() // until the orphan has ended too
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(out)) != strconv.Itoa(os.Getpid()) {
		return errNo
	}
	return nil
}

// subreaper says whether a process can take over the orphans of its descendants, left in the way of a part.
func subreaper(leaver string) error {
	var said strings.Builder
	cmd := exec.Command("/proc/self/exe", partReaper, leaver)
	cmd.Stderr = &said
	if err := cmd.Run(); err == nil {
		return nil
	}
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENOSYS, unix.EPERM} {
		if said.String() == unix.ErrnoName(errno) {
			return errno
		}
	}
	return errNo
}
