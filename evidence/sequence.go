// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// NextSequence returns the next sequence of the key in keyPath and keeps it, durably, in
// keyPath + ".seq". A key without that file starts at 1: when the memory of a key that has
// signed is lost, make a new key.
func NextSequence(keyPath string) (int64, error) {
	path := keyPath + ".seq"
	unlock, err := lockFile(path + ".lock")
	if err != nil {
		return 0, fmt.Errorf("lock sequence of %s: %w", keyPath, err)
	}
	n, err := advance(path)
	if err = errors.Join(err, unlock()); err != nil {
		return 0, fmt.Errorf("sequence of %s: %w", keyPath, err)
	}
	return n, nil
}

func advance(path string) (int64, error) {
	var n int64
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	default:
		n, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil || n < 1 {
			return 0, fmt.Errorf("sequence file holds %q", b)
		}
	}
	n++
	return n, WriteDurable(path, []byte(strconv.FormatInt(n, 10)+"\n"), 0o600)
}

// LockFile takes an exclusive lock on the file at path, which it makes, and does not wait: another
// holder is an error.
func LockFile(path string) (unlock func() error, err error) { return lockFile(path) }

// LockDirectory takes an exclusive lock on a directory, which leaves no file behind, and waits for it. Hold it
// for reading and writing only: whoever else wants it waits too.
func LockDirectory(path string) (unlock func() error, err error) { return lockDirectory(path) }
