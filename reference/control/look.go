// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Bounds of a look.
const (
	MaxLooks    = 4    // paths of one request; a rename has two
	MaxLookPath = 4096 // bytes of one path
	// LookWithin bounds the time from a look's arrival at the supervisor to its answer.
	LookWithin = time.Second
	lookMin    = 1 + 2 + 1
	lookMax    = 1 + MaxLooks*(2+MaxLookPath)
)

// checkLook returns what is wrong with the paths of a look, or nil.
func checkLook(paths [][]byte) error {
	if len(paths) < 1 || len(paths) > MaxLooks {
		return fmt.Errorf("%w: look of %d paths", ErrFrame, len(paths))
	}
	for _, p := range paths {
		if len(p) > MaxLookPath {
			return fmt.Errorf("%w: look at a path of %d bytes", ErrFrame, len(p))
		}
		for part := range strings.SplitSeq(string(p), "/") {
			if part == "" || part == "." || part == ".." || strings.IndexByte(part, 0) >= 0 {
				return fmt.Errorf("%w: look at a path with an empty, dot or dot-dot component, or NUL", ErrFrame)
			}
		}
	}
	return nil
}

// encodeLook returns the payload of a look request. Precondition: checkLook(paths) is nil.
func encodeLook(paths [][]byte) []byte {
	b := []byte{byte(len(paths))}
	for _, p := range paths {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(p))), p...)
	}
	return b
}

// ParseLook decodes and checks the payload of a look request. The paths alias b.
func ParseLook(b []byte) ([][]byte, error) {
	c := cursor{b: b}
	n := c.uint(1)
	if n > MaxLooks {
		return nil, fmt.Errorf("%w: look of %d paths", ErrFrame, n)
	}
	var paths [][]byte
	for range n {
		paths = append(paths, c.take(c.uint(2)))
	}
	if c.bad || len(c.b) != 0 {
		return nil, fmt.Errorf("%w: look", ErrFrame)
	}
	return paths, checkLook(paths)
}

// EncodeLooked returns the payload of a looked reply; 0 says that every path was looked up.
func EncodeLooked(e syscall.Errno) []byte { return binary.BigEndian.AppendUint32(nil, uint32(e)) }

// parseLooked decodes one. An errno above 4095 is not the kernel's.
func parseLooked(b []byte) (syscall.Errno, error) {
	c := cursor{b: b}
	errno := c.uint(4)
	if c.bad || len(c.b) != 0 || errno > 4095 {
		return 0, fmt.Errorf("%w: looked", ErrFrame)
	}
	return syscall.Errno(errno), nil
}

// Look has the supervisor look paths of the workspace up, with the tenant's authority and without a
// process: what its kernel holds on to by those names, and what is another file's or nobody's by now, it then
// lets go. nil says that all of them were looked up.
//
// It waits for earlier looks of this client, and for its answer, until ctx ends and no longer. A look that
// the supervisor never answers ends nothing but the looks of this client: later ones wait for it.
// Errors: ctx's, [ErrLost], [ErrBusy], [ErrFrame] for paths that break their bounds, a [syscall.Errno] of
// the sandbox's kernel.
func (c *Client) Look(ctx context.Context, paths ...[]byte) error {
	if err := checkLook(paths); err != nil {
		return err
	}
	select {
	case c.looking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return c.Err()
	}
	payload := encodeLook(paths) // a copy: the caller may be gone before it is sent
	ended := make(chan error, 1)
	go func() {
		ended <- c.look(payload)
		<-c.looking
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look ends with its answer, or with the bridge.
func (c *Client) look(payload []byte) error {
	id, k, err := c.open(Looked, 0, nil)
	if err != nil {
		return err
	}
	if err := c.send(Frame{Type: Look, Request: id, Payload: payload}); err != nil {
		return err
	}
	<-k.done
	if k.err != nil {
		return k.err
	}
	errno, err := parseLooked(k.payload)
	switch {
	case err != nil:
		return c.fail(err)
	case errno != 0:
		return fmt.Errorf("look up: %w", errno)
	}
	return nil
}
