// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// peerInterval is how soon the end of a peer is seen that net/http does not see.
const peerInterval = 200 * time.Millisecond

var errPeerLeft = errors.New("the caller has closed its connection")

// conn is a served connection, in the clear for net/http whatever it is on the wire: so HTTP/2
// is recognised by its preface on every listener, and the answers of all can be held to the union.
type conn struct {
	net.Conn // raw, or TLS over it
	raw      net.Conn
	pool     *connections

	busy     int             // guarded by pool.mu; requests with a valid capability
	held     map[string]hold // guarded by pool.mu; the same by workspace
	known    bool            // guarded by pool.mu; had one that was used up by it
	overdue  bool            // guarded by pool.mu; a stranger's time is over
	leaving  bool            // guarded by pool.mu; likewise, and it has its last words
	gone     bool            // guarded by pool.mu; put out, or closed
	since    time.Time       // guarded by pool.mu; of its arrival, or of the end of its last request
	stranger *time.Timer     // ends it if it proves nothing

	limit   atomic.Int64 // bytes that may still be read
	in, out stopwatch    // of the time that the worker waits for the peer

	answering atomic.Bool // a handler's answer is on its way
	http2     atomic.Bool // all writes are frames, whatever they look like
	refused   func(cause string) []byte
}

var errStranger = errors.New("too much from a connection without a valid capability")

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	if c.limit.Load() <= 0 {
		return 0, errStranger
	}
	c.in.start()
	n, err := c.Conn.Read(b)
	c.in.stop()
	c.limit.Add(-int64(n))
	return n, err
}

// waited returns how long the worker has waited for the peer, to send or to take, until now.
func (c *conn) waited(now time.Time) time.Duration { return c.in.total(now) + c.out.total(now) }

// stopwatch adds up the time between start and stop, which do not overlap.
type stopwatch struct {
	mu    sync.Mutex
	since time.Time     // guarded by mu; zero when stopped
	sum   time.Duration // guarded by mu
}

func (s *stopwatch) start() {
	s.mu.Lock()
	s.since = time.Now()
	s.mu.Unlock()
}

func (s *stopwatch) stop() {
	s.mu.Lock()
	s.sum += time.Since(s.since)
	s.since = time.Time{}
	s.mu.Unlock()
}

func (s *stopwatch) total(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return s.sum
	}
	return s.sum + now.Sub(s.since)
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.pool.leftBy(c)
	return err
}

// CloseWrite lets net/http end its side first, so that a peer that is still sending reads the
// refusal instead of a reset.
func (c *conn) CloseWrite() error {
	w, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return w.CloseWrite()
}

// Write replaces what net/http says by itself. A request that it cannot parse never reaches a
// handler: it writes a status line and a text in one piece, and closes. Outside of an answer
// nothing else is written, but for HTTP/2, whose first write is a SETTINGS frame.
func (c *conn) Write(b []byte) (int, error) {
	c.out.start()
	defer c.out.stop()
	if c.answering.Load() || c.http2.Load() {
		return c.Conn.Write(b)
	}
	line, _, found := bytes.Cut(b, []byte("\r\n"))
	if !found || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		c.http2.Store(true)
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(c.refused(string(line))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// connKey carries the connection in the context of its requests.
type connKey struct{}

func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// connContext is for [http.Server.ConnContext].
func (s *Server) connContext(ctx context.Context, nc net.Conn) context.Context {
	c, ok := nc.(*conn)
	if !ok {
		return ctx
	}
	c.refused = func(cause string) []byte { return s.unparsed(ctx, cause) }
	return context.WithValue(ctx, connKey{}, c)
}

// connState is for [http.Server.ConnState]: idle means that the answer has been written.
func connState(nc net.Conn, state http.ConnState) {
	if c, ok := nc.(*conn); ok && state == http.StateIdle {
		c.answering.Store(false)
	}
}

// begin sets the first deadlines of a request and marks its connection's writes as an answer of
// ours.
//
// From here a slow body, or an answer that is never read, ends the request. Under HTTP/1.1 the
// write deadline of the connection's last answer would still hold, so it is moved; under HTTP/2
// each stream has its own, and one that passes resets the stream even while nothing is being
// written: it is set when the answer is.
//
// A request in chunks is the last of its connection: where Content-Length stood beside
// Transfer-Encoding, net/http has dropped it, and what a proxy takes for the next request may not
// be one (RFC 9112, section 6.1).
func (s *Server) begin(x *exchange) error {
	if c := connOf(x.r.Context()); c != nil {
		c.answering.Store(true)
	}
	if len(x.r.TransferEncoding) != 0 {
		x.w.Header().Set("Connection", "close")
	}
	rc, to := http.NewResponseController(x.w), time.Now().Add(s.stall)
	err := rc.SetReadDeadline(to)
	if x.r.ProtoMajor == 1 {
		err = errors.Join(err, rc.SetWriteDeadline(to))
	}
	return err
}

// claim marks the request's connection busy with workspace for op, until the returned function is called.
func claim(ctx context.Context, workspace string, op api.Op) (func(), error) {
	c := connOf(ctx)
	if c == nil {
		return func() {}, nil
	}
	if err := c.pool.enter(c, workspace, op); err != nil {
		return nil, err
	}
	return func() { c.pool.leave(c, workspace) }, nil
}

// prove makes the request's connection known.
func prove(ctx context.Context) {
	if c := connOf(ctx); c != nil {
		c.pool.prove(c)
	}
}

// whilePeer returns a context that ends when the peer closes its connection or its sending
// half. net/http sees that too, unless there is a byte behind the request: it then holds that
// byte for a next request and reads no further. The kernel tells the end whatever is unread
// (poll(2), POLLRDHUP). Under HTTP/2 the end of one stream ends ctx by itself. A connection
// without a descriptor is left to net/http.
func whilePeer(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := func() { cancel(nil) }
	c := connOf(ctx)
	if c == nil {
		return ctx, done
	}
	sc, ok := c.raw.(syscall.Conn)
	if !ok {
		return ctx, done
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return ctx, done
	}
	go func() {
		tick := time.NewTicker(peerInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if left(raw) {
				cancel(errPeerLeft)
				return
			}
		}
	}()
	return ctx, done
}

func left(raw syscall.RawConn) bool {
	gone := false
	err := raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil // Control fails on a closed connection only
}
