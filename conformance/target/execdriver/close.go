// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// close is [driver.end], and tells of a program that has broken the protocol before.
func (d *driver) close() error {
	select {
	case <-d.conn.broken:
		return errors.Join(d.conn.reason, d.end())
	default:
		return d.end()
	}
}

// end asks the program to end, ends it if it does not, and says everything that it left. It is
// bounded, whatever the program does.
func (d *driver) end() error {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	c := d.conn
	asked := false
	select {
	case <-c.broken:
	default:
		asked = true
		ctx, cancel := context.WithTimeout(context.Background(), c.bounds.close+time.Second)
		err := c.call(ctx, "close", c.bounds.close, &plainRequest{}, &nothing{})
		cancel()
		if err != nil {
			add(fmt.Errorf("close: %w", err))
		}
	}
	c.proc.stdin.Close()
	if !c.proc.await(c.bounds.exit) {
		add(violation("the program has not ended %s after the end of its input", c.bounds.exit))
	}
	c.proc.kill()
	if asked && len(errs) == 0 && c.proc.failed {
		add(violation("the program ended with %s after close", c.proc.status))
	}
	if left := c.proc.survivors(); len(left) > 0 {
		add(violation("the program left %s", strings.Join(left, ", ")))
	}
	// Whoever holds the pipe now was not the program's.
	c.proc.stdout.SetReadDeadline(time.Now().Add(time.Second))
	<-c.read
	c.proc.stdout.Close()
	c.proc.log.close()
	c.mu.Lock()
	late := c.late
	c.mu.Unlock()
	if late != "" {
		add(violation("an answer came after that to close: %s", late))
	}
	add(d.removeFolders())
	return errors.Join(errs...)
}

// removeFolders removes the log and the state folder. A mount below is detached first, so that
// nobody who cleans up walks through it; what else the program left in its folder stays there, and
// is said.
func (d *driver) removeFolders() error {
	var left []string
	mounts, err := target.MountsBelow(d.dir)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for i := len(mounts) - 1; i >= 0; i-- { // the newest first
		left = append(left, "mount "+mounts[i].Mountpoint)
		if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			left = append(left, fmt.Sprintf("(and it stays: %v)", err))
		}
	}
	if err := os.Remove(filepath.Join(d.dir, logName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the program's log: %w", err)
	}
	entries, err := os.ReadDir(d.state)
	if err != nil {
		return fmt.Errorf("read the program's folder: %w", err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if len(left) > 0 {
		err = violation("the program left %d things in its folder: %s", len(left), strings.Join(left[:min(len(left), 8)], ", "))
	}
	if len(entries) == 0 {
		err = errors.Join(err, os.Remove(d.state))
	}
	return err
}
