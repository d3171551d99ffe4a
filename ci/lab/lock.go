// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a held lock is tried again: flock(2) has no timed form.
const lockPoll = 100 * time.Millisecond

// Lock takes an exclusive lock on a file, which it makes, and waits for it until ctx ends; waiting is called once when
// another holds it. The kernel drops the lock with its holder. Errors: ctx's, and those of open(2) and flock(2).
func Lock(ctx context.Context, file string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, err
		}
		if !told {
			waiting()
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}
