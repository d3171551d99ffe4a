// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Tools are the absolute paths of the external programs.
type Tools struct{ Mkfs, Fsck, Debugfs string }

// FindTools looks where distributions put e2fsprogs. PATH is not consulted: this runs as root.
func FindTools() (Tools, error) {
	find := func(name string) string {
		for _, dir := range []string{"/usr/sbin/", "/sbin/", "/usr/bin/"} {
			if st, err := os.Stat(dir + name); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return dir + name
			}
		}
		return ""
	}
	t := Tools{Mkfs: find("mkfs.ext4"), Fsck: find("e2fsck"), Debugfs: find("debugfs")}
	if t.Mkfs == "" || t.Fsck == "" || t.Debugfs == "" {
		return t, fmt.Errorf("%w: mkfs.ext4, e2fsck and debugfs are needed; install the package e2fsprogs", ErrTool)
	}
	return t, nil
}

// outputLimit bounds what is kept of a tool's output for an error message, in bytes.
const outputLimit = 2048

// run executes one tool and returns its exit code. The lock is inherited, so that a
// tool which outlives this process still excludes the next operation on the image.
//
// Preconditions: the calling goroutine is locked to its thread for the process's life,
// or the tool could be killed early: Pdeathsig follows the thread (prctl(2)).
func (s *Store) run(ctx context.Context, lock *os.File, stdin, path string, args ...string) (int, string, error) {
	c := exec.CommandContext(ctx, path, args...)
	c.Dir = "/"
	c.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MKE2FS_CONFIG=/dev/null", "E2FSCK_CONFIG=/dev/null",
		"E2FSPROGS_FAKE_TIME=", "DEBUGFS_PAGER=__none__"}
	c.ExtraFiles = []*os.File{lock}
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	text := string(out)
	if len(text) > outputLimit {
		text = text[:outputLimit]
	}
	text = strings.Join(strings.Fields(text), " ")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), text, nil
	}
	if err != nil {
		return -1, text, fmt.Errorf("run %s: %w", path, err)
	}
	return 0, text, nil
}
