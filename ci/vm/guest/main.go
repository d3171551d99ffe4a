// SPDX-License-Identifier: Apache-2.0

// Command guest is /init of the virtual machine that package vm builds.
//
// It owns the machine: it mounts the file systems of a running Linux, loads the modules that the cohort needs, makes
// the two quota file systems, and then serves the host over the serial port (package link). PID 1 only reaps; what
// serves is its child, and when that ends, the machine is switched off. It speaks to no network and takes no
// argument but what the kernel's command line says.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// serveArgument marks the child that serves.
const serveArgument = "serve"

func main() {
	var err error
	if os.Getpid() == 1 {
		err = boot()
	} else if len(os.Args) == 2 && os.Args[1] == serveArgument {
		err = serve()
	} else {
		err = errors.New("this is the init of a virtual machine, and no command")
	}
	if err != nil {
		mark("failed: %v", err)
	}
	if os.Getpid() == 1 {
		unix.Sync()
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // otherwise the end of PID 1 is a panic, and ends the machine too
	}
	os.Exit(1)
}

// boot prepares the machine and reaps until the child that serves has ended.
func boot() error {
	if err := mountAll(); err != nil {
		return err
	}
	if err := attachConsole(); err != nil {
		return err
	}
	mark("mounted")
	if err := prepare(); err != nil {
		return err
	}
	mark("prepared")
	if hang() {
		mark("hangs as it was told")
		for {
			_ = unix.Pause() // an empty select would end a program that has nothing else to do
		}
	}
	cmd := exec.Command("/proc/self/exe", serveArgument)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start what serves: %w", err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("reap: %w", err)
		}
		if pid == cmd.Process.Pid {
			return fmt.Errorf("what serves has ended: %#x", status)
		}
	}
}

// mark writes a line to the console, with the time since the kernel started.
func mark(format string, args ...any) {
	fmt.Printf("guest: %6d ms: %s\n", uptime(), fmt.Sprintf(format, args...))
}

// uptime is the time since the kernel started, in ms.
func uptime() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return -1
	}
	return ts.Nano() / 1e6
}

// hang reports whether the kernel's command line asks for a guest that never answers, for tests of the host's bounds.
func hang() bool {
	line, err := os.ReadFile("/proc/cmdline")
	return err == nil && strings.Contains(" "+strings.TrimSpace(string(line))+" ", " hallmark.hang ")
}
