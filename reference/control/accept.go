// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Deadlines of the supervisor's end.
const (
	// FirstRequestWithin bounds the wait for the first whole request after accept.
	FirstRequestWithin = 5 * time.Second
	// FrameWithin bounds a frame from its first byte to its last, read or written.
	FrameWithin = 10 * time.Second
)

// ErrSlow says that a frame did not arrive, or did not leave, within its deadline.
var ErrSlow = errors.New("deadline of a frame passed")

// Conn is the supervisor's end of one connection. Receive is for one goroutine; Send may be
// called by many.
type Conn struct {
	conn      net.Conn
	challenge [ChallengeSize]byte
	seq       uint64 // of the next request; also "is proven" when not zero
	accepted  time.Time
	verify    func(want, got []byte) bool // hmac.Equal; a test shows what its absence does

	sendMu sync.Mutex
	out    []byte // used again for each frame
}

// Accept takes a connection whose peer credentials were found good and sends the hello with
// a fresh challenge. It does not close c on an error.
func Accept(c net.Conn) (*Conn, error) {
	k := &Conn{conn: c, accepted: time.Now(), verify: hmac.Equal}
	rand.Read(k.challenge[:]) // never fails: crypto/rand ends the process instead
	if err := k.Send(Frame{Type: Hello, Payload: k.challenge[:]}); err != nil {
		return nil, fmt.Errorf("send hello: %w", err)
	}
	return k, nil
}

// Proven says whether one request with a right MAC has arrived.
func (k *Conn) Proven() bool { return k.seq > 0 }

// Receive returns the next authenticated request. Errors: io.EOF between frames, [ErrSlow],
// [ErrFrame], [ErrMAC]; after any of them the connection must be closed.
//
// The wait for the first byte of a frame is unbounded once a request was proven: the bridge
// idles. Everything else has a deadline.
func (k *Conn) Receive() (Frame, error) {
	var head [HeaderSize]byte
	limit := ^uint32(0)
	first := time.Time{}
	if !k.Proven() {
		limit, first = FirstRequestMax, k.accepted.Add(FirstRequestWithin)
	}
	k.conn.SetReadDeadline(first)
	if _, err := io.ReadFull(k.conn, head[:1]); err != nil {
		return Frame{}, slow(err)
	}
	if k.Proven() {
		k.conn.SetReadDeadline(time.Now().Add(FrameWithin))
	}
	if _, err := io.ReadFull(k.conn, head[1:]); err != nil {
		return Frame{}, slow(noEOF(err))
	}
	h, err := parseHeader(&head, true, limit)
	if err != nil {
		return Frame{}, err
	}
	body := make([]byte, int(h.length)+MACSize)
	if _, err := io.ReadFull(k.conn, body); err != nil {
		return Frame{}, slow(noEOF(err))
	}
	payload, got := body[:h.length:h.length], body[h.length:]
	want := mac(&k.challenge, k.seq, head[:], payload)
	if !k.verify(want[:], got) {
		return Frame{}, ErrMAC
	}
	k.seq++
	return Frame{Type: h.typ, Request: h.request, Payload: payload}, nil
}

// Send writes one reply. After an error the connection must be closed.
func (k *Conn) Send(f Frame) error {
	k.sendMu.Lock()
	defer k.sendMu.Unlock()
	k.out = Append(k.out[:0], f)
	k.conn.SetWriteDeadline(time.Now().Add(FrameWithin))
	_, err := k.conn.Write(k.out)
	return slow(err)
}

// Close closes the connection and unblocks both directions.
func (k *Conn) Close() error { return k.conn.Close() }

func slow(err error) error {
	var t interface{ Timeout() bool }
	if errors.As(err, &t) && t.Timeout() {
		return ErrSlow
	}
	return err
}
