// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// connectionGrace is how long a stranger may keep the worker waiting before it can be put out, and
// how long a known connection is safe after an answer. With the bound it fixes how fast a full house
// turns over: 128 connections in 250 ms, so that a caller behind a kernel queue of 4,096 strangers
// (net.core.somaxconn) waits for 8 s, and for 24 s when three listeners are flooded alike.
const connectionGrace = 250 * time.Millisecond

// strangerBytes is what is read from a connection before it has proven itself: headers as they are
// parsed, and what a caller sends ahead of its bodies (the first window of HTTP/2).
const strangerBytes = maxParsedHeaderBytes + receiveBuffer

// connections bounds how many connections are open over all listeners, and decides who goes when
// one more comes.
//
// A connection is busy while a request with a valid capability is on it; it is then never put
// out. It is known once it has carried one that was used up by it, and a stranger before: a captured
// one that was used before proves nothing. A stranger gets one answer and headerTimeout in all, and
// lingerTimeout more for an answer that is on its way then: /healthz proves nothing either. How many may
// be busy with what is said at [occupancy].
//
// When the house is full and one more connection arrives, the stranger that came first goes, and
// without strangers the known connection that has been idle longest; each only after its grace, of
// which a stranger uses up only the time in which the worker waits for it: a caller whose request has
// arrived is not put out because the worker is slow to look at it. When all are busy the newcomer
// waits, accepted and unread, and those behind it wait in the kernel's queue. So there are at most max
// connections and one more for each listener.
type connections struct {
	max            int
	grace, strange time.Duration

	mu      sync.Mutex
	open    map[*conn]struct{} // guarded by mu
	busy    occupancy          // guarded by mu
	changed chan struct{}      // guarded by mu; closed and replaced when a place may have come free

	waiting         int    // guarded by mu
	putOut, expired uint64 // guarded by mu
}

func newConnections(max int) *connections {
	return &connections{
		max: max, grace: connectionGrace, strange: headerTimeout,
		open: map[*conn]struct{}{}, busy: newOccupancy(max), changed: make(chan struct{}),
	}
}

// listener bounds l's connections together with those of the other listeners.
func (p *connections) listener(l net.Listener) net.Listener {
	return &bounded{Listener: l, pool: p, closed: make(chan struct{})}
}

type bounded struct {
	net.Listener
	pool   *connections
	closed chan struct{}
	once   sync.Once
}

func (l *bounded) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, raw: raw, pool: l.pool}
	c.limit.Store(strangerBytes)
	if t, ok := l.Listener.(*tlsListener); ok {
		c.Conn = tls.Server(raw, t.cfg) // the handshake comes with the first read, under its deadline
	}
	if !l.pool.admit(c, l.closed) {
		_ = raw.Close() // nothing was said on it
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *bounded) Close() (err error) {
	l.once.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
	})
	return err
}

// admit gives c a place, and reports false when the listener ended first.
func (p *connections) admit(c *conn, closed <-chan struct{}) bool {
	for {
		p.mu.Lock()
		now := time.Now()
		if len(p.open) < p.max {
			c.since = now
			p.open[c] = struct{}{}
			c.stranger = time.AfterFunc(p.strange, func() { p.expire(c) })
			p.mu.Unlock()
			return true
		}
		out, wait := p.choose(now)
		if out != nil {
			p.remove(out)
			p.putOut++
		} else {
			p.waiting++
		}
		changed := p.changed
		p.mu.Unlock()
		if out != nil {
			_ = out.raw.Close() // the raw one: TLS would wait for the peer to take its farewell
			continue
		}
		timer, ended := time.NewTimer(wait), false
		select {
		case <-changed:
		case <-timer.C:
		case <-closed:
			ended = true
		}
		timer.Stop()
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
		if ended {
			return false
		}
	}
}

// choose returns who goes, or how long it takes until somebody may.
// Preconditions: mu is held.
func (p *connections) choose(now time.Time) (out *conn, wait time.Duration) {
	strangers := false
	wait = time.Hour // all are busy: until one leaves
	for c := range p.open {
		if c.busy > 0 || strangers && c.known {
			continue
		}
		if !c.known && !strangers { // one shields all that are known, even within its grace
			strangers, out, wait = true, nil, time.Hour
		}
		used := now.Sub(c.since)
		if !c.known {
			used = c.waited(now)
		}
		if left := p.grace - used; left > 0 {
			wait = min(wait, max(left, p.grace/10))
			continue
		}
		if out == nil || c.since.Before(out.since) {
			out = c
		}
	}
	if out != nil {
		return out, 0
	}
	return nil, wait
}

// remove takes c off the list. Preconditions: mu is held; c is closed afterwards.
func (p *connections) remove(c *conn) {
	if _, ok := p.open[c]; !ok {
		return
	}
	delete(p.open, c)
	c.gone = true
	c.stranger.Stop()
	p.tell()
}

// tell wakes those who wait for a place. Preconditions: mu is held.
func (p *connections) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// expire ends a connection that is still a stranger, a busy one when it has left off, and one that is being
// answered a little later, so that its caller reads the refusal and not a reset. Answered, net/http closes it.
func (p *connections) expire(c *conn) {
	p.mu.Lock()
	out := !c.known && c.busy == 0 && !c.gone
	c.overdue = !c.known
	if out && c.answering.Load() && !c.leaving {
		c.leaving, out = true, false
		c.stranger.Reset(lingerTimeout)
	}
	if out {
		p.remove(c)
		p.expired++
	}
	p.mu.Unlock()
	if out {
		_ = c.raw.Close()
	}
}

// enter marks c busy with a request whose capability is valid, of workspace, for op. It fails when c has been
// put out: its caller will see no answer, so nothing may happen for it; and when there is no place for it.
func (p *connections) enter(c *conn, workspace string, op api.Op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.gone {
		return errPeerLeft
	}
	if err := p.busy.enter(c, workspace, brief(op)); err != nil {
		return err
	}
	c.busy++
	c.leaving = false
	return nil
}

// prove makes c known: it carries a request whose capability was good, and is used up now.
func (p *connections) prove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.known = true
	c.limit.Store(math.MaxInt64)
}

func (p *connections) leave(c *conn, workspace string) {
	p.mu.Lock()
	p.busy.leave(c, workspace)
	c.busy--
	c.since = time.Now()
	p.tell()
	overdue := c.overdue
	p.mu.Unlock()
	if overdue {
		p.expire(c)
	}
}

func (p *connections) isStranger(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !c.known
}

func (p *connections) leftBy(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(c)
}

// quiet waits until no connection is busy.
func (p *connections) quiet(ctx context.Context) error {
	for {
		p.mu.Lock()
		busy := 0
		for c := range p.open {
			busy += c.busy
		}
		changed := p.changed
		p.mu.Unlock()
		if busy == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d in progress: %w", busy, ctx.Err())
		}
	}
}

// expireAll ends the time of all strangers.
func (p *connections) expireAll() {
	p.mu.Lock()
	open := slices.Collect(maps.Keys(p.open))
	p.mu.Unlock()
	for _, c := range open {
		p.expire(c)
	}
}
