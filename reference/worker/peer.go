// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// peerInterval is how soon the end of a peer is seen that net/http does not see.
const peerInterval = 200 * time.Millisecond

var errPeerLeft = errors.New("the caller has closed its connection")

// connKey carries the connection in the context of its requests.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// whilePeer returns a context that ends when the peer closes its connection or its sending
// half. net/http sees that too, unless there is a byte behind the request: it then holds that
// byte for a next request and reads no further. The kernel tells the end whatever is unread
// (poll(2), POLLRDHUP). A connection without a descriptor is left to net/http.
func whilePeer(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := func() { cancel(nil) }
	c, _ := ctx.Value(connKey{}).(net.Conn)
	if s, ok := c.(*slotted); ok {
		c = s.Conn
	}
	sc, ok := c.(syscall.Conn)
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
