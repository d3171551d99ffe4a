// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"strconv"
)

// Endless sends r's head and then a body of zeros without an end, chunked or under a declared
// length of 1 GiB, until an answer has come, the worker has closed, or it has taken most bytes. It
// returns the answer and how many bytes of the body the worker has taken; what lies in the
// sockets' buffers counts as taken.
func Endless(ctx context.Context, dial Dial, r Request, chunked bool, most int64) (a Answer, taken int64, err error) {
	c, err := open(ctx, dial)
	if err != nil {
		return a, 0, err
	}
	defer c.Close()
	r.Body, r.Framed = nil, true
	if chunked {
		r.Header = append(r.Header, "Transfer-Encoding: chunked")
	} else {
		r.Header = append(r.Header, "Content-Length: "+strconv.Itoa(1<<30))
	}
	if _, err := c.Write(r.Head()); err != nil {
		return a, 0, fmt.Errorf("write request: %w", err)
	}
	type read struct {
		a   Answer
		err error
	}
	answered := make(chan read, 1)
	go func() {
		a, err := Read(c)
		answered <- read{a, err}
	}()
	const size = 64 << 10
	block := make([]byte, 0, size+16)
	if chunked {
		block = append(block, strconv.FormatInt(size, 16)+"\r\n"...)
	}
	block = append(block, make([]byte, size)...)
	if chunked {
		block = append(block, "\r\n"...)
	}
	for taken < most {
		select {
		case got := <-answered:
			return got.a, taken, got.err
		default:
		}
		if _, err := c.Write(block); err != nil {
			break // the worker has closed: its answer is there, or none comes
		}
		taken += size
	}
	if taken >= most {
		c.Close() // nobody waits for an answer to a body that has no end
	}
	got := <-answered
	return got.a, taken, got.err
}
