// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = errors.New("larger than its bound")
)

// ReadRegular reads a regular file below root of at most limit bytes. It follows no link in the last
// component and waits for nobody: whoever made the file may have made something else, or replaces it meanwhile.
func ReadRegular(root *os.Root, name string, limit int64) (_ []byte, err error) {
	named, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !named.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is %s: %w", name, named.Mode(), errNotRegular)
	}
	// A FIFO that has taken the file's place must not block.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	opened, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(named, opened) {
		return nil, fmt.Errorf("%q was replaced while it was opened: %w", name, errNotRegular)
	}
	if opened.Size() > limit {
		return nil, fmt.Errorf("%q has %d bytes, at most %d: %w", name, opened.Size(), limit, errTooLarge)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%q grew beyond %d bytes: %w", name, limit, errTooLarge)
	}
	return data, err
}
