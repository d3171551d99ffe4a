// SPDX-License-Identifier: Apache-2.0

package worker

import "github.com/hallmark-sandbox/hallmark/reference/api"

// body reads the body of an authorized request, which is what the capability says, and gives it to
// decode. It is in memory, and counts, until decode returns: as long as it is announced, or else as
// it comes.
func (s *Server) body(x *exchange, decode func([]byte) error) error {
	b := counted{shares: s.bodies, workspace: x.claims.WorkspaceID, give: func() {}}
	defer func() { b.give() }()
	if err := b.grow(min(x.r.ContentLength, api.MaxRequestBytes)); err != nil {
		return err
	}
	if _, err := s.readBody(x, &b); err != nil {
		return err
	}
	return decode(b.bytes)
}

// firstGrowth is the room for the first bytes of a body of unknown length. Doubled, it comes to the
// bound of a body.
const firstGrowth = 32 << 10

// counted is a buffer whose memory is a workspace's share.
type counted struct {
	shares    *shares
	workspace string
	bytes     []byte
	give      func() // of all of its memory
}

// Write implements [io.Writer]. Without room its error is UNAVAILABLE.
func (c *counted) Write(p []byte) (int, error) {
	if need := len(c.bytes) + len(p); need > cap(c.bytes) {
		if err := c.grow(int64(max(need, 2*cap(c.bytes), firstGrowth))); err != nil {
			return 0, err
		}
	}
	c.bytes = append(c.bytes, p...)
	return len(p), nil
}

// grow makes room for n bytes; for less than none, as of an unknown length, it does nothing.
func (c *counted) grow(n int64) error {
	if n <= 0 {
		return nil
	}
	give, err := c.shares.take(c.workspace, n)
	if err != nil {
		return err
	}
	c.bytes = append(make([]byte, 0, n), c.bytes...)
	c.give() // what was there until it was copied
	c.give = give
	return nil
}
