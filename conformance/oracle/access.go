// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Access is what was done to one file.
type Access struct{ Opened, Read int64 }

// Accesses watches files on the host, inotify(7). Whoever opens or reads them by whatever mount is seen,
// the reads of a sandbox's kernel included, as long as it asks this host's.
type Accesses struct {
	fd    int
	paths map[int32]string
}

// WatchAccess begins to watch.
func WatchAccess(paths ...string) (*Accesses, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch accesses: %w", err)
	}
	a := &Accesses{fd: fd, paths: map[int32]string{}}
	for _, p := range paths {
		wd, err := unix.InotifyAddWatch(fd, p, unix.IN_OPEN|unix.IN_ACCESS|unix.IN_DONT_FOLLOW)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watch %s: %w", p, err), a.Close())
		}
		a.paths[int32(wd)] = p
	}
	return a, nil
}

// Take returns what was seen since the last call, by path. The kernel puts equal events that follow each other
// together, so a count is a lower bound. A queue that ran over is an error.
func (a *Accesses) Take() (map[string]Access, error) {
	out := map[string]Access{}
	b := make([]byte, 64<<10)
	for {
		n, err := unix.Read(a.fd, b)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("read accesses: %w", err)
		}
		for rest := b[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[4:])
			rest = rest[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(rest[12:]):]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				return nil, errors.New("read accesses: some were lost")
			}
			seen := out[a.paths[wd]]
			if mask&unix.IN_OPEN != 0 {
				seen.Opened++
			}
			if mask&unix.IN_ACCESS != 0 {
				seen.Read++
			}
			if seen != (Access{}) {
				out[a.paths[wd]] = seen
			}
		}
	}
}

// Close ends the watch.
func (a *Accesses) Close() error { return unix.Close(a.fd) }
