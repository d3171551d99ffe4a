// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked: another process keeps workspaces in the directory.
var ErrLocked = errors.New("workspace directory is in use by another process")

// lockWithin is how long a predecessor gets to end.
const lockWithin = 2 * time.Second

// lockDir takes an exclusive flock(2) on the directory itself. A state directory of one's own
// is not enough: two workers on one workspace directory would each give the same workspace to
// a sandbox. Helpers do not inherit it (O_CLOEXEC), so it ends with this process.
func lockDir(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open workspace directory: %w", err)
	}
	f := os.NewFile(uintptr(fd), dir)
	for deadline := time.Now().Add(lockWithin); ; {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return nil, errors.Join(fmt.Errorf("lock workspace directory: %w", err), f.Close())
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, ErrLocked), f.Close())
		}
		time.Sleep(20 * time.Millisecond) // flock has no timed form
	}
}
