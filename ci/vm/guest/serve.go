// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

// serve answers the host until the port fails. Whoever holds the other end of the port owns the machine: it is one
// end of a socket pair that only the program has which started the machine.
func serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	defer port.Close()
	c := link.New(port)
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	if err := c.WriteJSON(link.Hello, link.Greeting{Kernel: unix.ByteSliceToString(uts.Release[:]), Uptime: uptime()}); err != nil {
		return err
	}
	mark("serving")
	failed := make(chan error, 2)
	go func() {
		for range time.Tick(link.BeatPeriod) {
			if err := c.Write(link.Beat, nil); err != nil {
				failed <- err
				return
			}
		}
	}()
	go func() { failed <- operations(c) }()
	return <-failed
}

// openPort finds the port by its name: there is no udev that would make a link.
func openPort() (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == link.Port {
			return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR|unix.O_CLOEXEC, 0)
		}
	}
	return nil, errors.New("there is no serial port " + link.Port)
}

func operations(c *link.Conn) error {
	for {
		kind, body, err := c.Read()
		if err != nil {
			return err
		}
		switch kind {
		case link.Put:
			var dir string
			if err = json.Unmarshal(body, &dir); err == nil {
				err = put(c, dir)
			}
		case link.Get:
			var paths []string
			if err = json.Unmarshal(body, &paths); err == nil {
				err = get(c, paths)
			}
		case link.Run:
			var cmd link.Command
			if err = json.Unmarshal(body, &cmd); err == nil {
				err = c.WriteJSON(link.Exit, execute(c, cmd))
			}
		default:
			err = fmt.Errorf("%w: the host asks %d", link.ErrFrame, kind)
		}
		if err != nil {
			return err
		}
	}
}

// put unpacks what the host sends. A fault of the disk is told when all has come, so that the frames stay in step.
func put(c *link.Conn, dir string) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := link.Unpack(r, dir, math.MaxInt64)
		r.CloseWithError(err) // later writes fail at once
		done <- err
	}()
	for {
		kind, body, err := c.Read()
		if err != nil {
			return err
		}
		if kind == link.End {
			break
		}
		if kind != link.Data {
			return fmt.Errorf("%w: %d within an archive", link.ErrFrame, kind)
		}
		_, _ = w.Write(body) // its fault is that of Unpack
	}
	w.Close()
	return tell(c, <-done)
}

func get(c *link.Conn, paths []string) error {
	t := tar.NewWriter(c.Stream(link.Data))
	var err error
	for _, p := range paths {
		err = errors.Join(err, link.Pack(t, p, ""))
	}
	return tell(c, errors.Join(err, t.Close()))
}

// tell ends an operation.
func tell(c *link.Conn, err error) error {
	var text string
	if err != nil {
		text = err.Error()
	}
	return c.Write(link.Done, []byte(text[:min(len(text), link.MaxFrame)]))
}

// execute runs one command in a session of its own and ends its process group after it.
func execute(c *link.Conn, want link.Command) link.Result {
	if len(want.Argv) == 0 || want.Timeout <= 0 {
		return link.Result{Code: -1, Error: "a command needs argv and a time-out"}
	}
	cmd := exec.Command(want.Argv[0], want.Argv[1:]...)
	cmd.Env = append([]string{"PATH=" + environmentPath, "HOME=/root", "TERM=dumb"}, want.Env...)
	cmd.Dir = want.Dir
	cmd.Stdout, cmd.Stderr = c.Stream(link.Stdout), c.Stream(link.Stderr)
	cmd.WaitDelay = 5 * time.Second // for what holds the streams open without being of the group
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return link.Result{Code: -1, Error: err.Error()}
	}
	timer := time.AfterFunc(time.Duration(want.Timeout)*time.Millisecond, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	_ = cmd.Wait() // its state says it
	res := link.Result{Code: cmd.ProcessState.ExitCode(), TimedOut: !timer.Stop()}
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // the rest of the group; none is the good case
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		res.Signal = ws.Signal().String()
	}
	return res
}
