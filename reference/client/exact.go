// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// exact gives a body of a known size to net/http, and remembers why it could not. net/http reads it
// in a goroutine of its own, and may still do so when the answer is there.
type exact struct {
	from io.Reader
	left int64 // of the reading goroutine

	mu  sync.Mutex
	err error // guarded by mu
}

// Read implements [io.Reader]. The last bytes are held back until the source has ended: a worker
// that has them could answer before anybody sees that there are more.
func (e *exact) Read(p []byte) (int, error) {
	if err := e.failure(); err != nil {
		return 0, err
	}
	n, err := e.from.Read(p)
	e.left -= int64(n)
	if e.left == 0 && err == nil {
		err = e.tail()
	}
	switch {
	case e.left < 0:
		err = errors.New("the body is longer than announced")
	case err != nil && !errors.Is(err, io.EOF):
		err = fmt.Errorf("read body: %w", err)
	case err != nil && e.left > 0:
		err = fmt.Errorf("the body ended %d bytes short of its size", e.left)
	default:
		return n, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
	return 0, err
}

// tail demands the end of the source.
func (e *exact) tail() error {
	n, err := io.ReadFull(e.from, make([]byte, 1))
	e.left -= int64(n)
	return err
}

// failure returns what was wrong with the body, nil if nothing was or it was not read to its end.
func (e *exact) failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}
