// SPDX-License-Identifier: Apache-2.0

//go:build unix

package evidence

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes an exclusive flock(2) without waiting. The kernel drops it when the process
// ends, whatever ends it.
func lockFile(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return flock(f, unix.LOCK_EX|unix.LOCK_NB)
}

func lockDirectory(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return flock(f, unix.LOCK_EX)
}

func flock(f *os.File, how int) (unlock func() error, err error) {
	for {
		if err = unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}
