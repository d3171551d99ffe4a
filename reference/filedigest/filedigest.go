// SPDX-License-Identifier: Apache-2.0

// Package filedigest reads the digests of programs again and again, at the price of a stat while
// they do not change. It owns what it has read and nothing else. What it takes for unchanged is the
// same inode with the same size and times (stat(2)): of these nobody can set the time of change
// (ctime) but whoever sets the host's clock or writes below the filesystem.
package filedigest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// settle is how long a file must have been left alone before its digest is kept: file times have the
// grain of a timer tick (at most 10 ms), within which a second change leaves no trace.
const settle = 2 * time.Second

// maxKept bounds the files whose digests are kept.
const maxKept = 64

// Reader is safe for concurrent use. The zero value is ready.
type Reader struct {
	mu   sync.Mutex
	kept map[identity]string
}

type identity struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// ErrChanging means that a file was written to while it was read.
var ErrChanging = errors.New("file changes while it is read")

// File returns "sha256:" and 64 hex digits of what path names now, links followed.
func (r *Reader) File(path string) (_ string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	before, regular, err := identify(f)
	if err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	if !regular {
		return "", fmt.Errorf("digest %s: not a regular file", path)
	}
	r.mu.Lock()
	digest, ok := r.kept[before]
	r.mu.Unlock()
	if ok {
		return digest, nil
	}
	began := time.Now()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest %s: %w", path, err)
	}
	after, _, err := identify(f)
	if err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	if after != before {
		return "", fmt.Errorf("digest %s: %w", path, ErrChanging)
	}
	digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	if began.Sub(time.Unix(before.ctime.Unix())) > settle {
		r.keep(before, digest)
	}
	return digest, nil
}

func (r *Reader) keep(id identity, digest string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil || len(r.kept) >= maxKept {
		r.kept = map[identity]string{}
	}
	r.kept[id] = digest
}

func identify(f *os.File) (id identity, regular bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, false, err
	}
	return identity{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}
