// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Ops of requests that are none of [api.Ops], for an [Observer].
const (
	OpLiveness api.Op = "liveness"   // GET /healthz
	OpUnrouted api.Op = "unrouted"   // refused before it was known which operation it is
	OpUnparsed api.Op = "unparsed"   // not HTTP, or beyond what net/http reads
	CodeOK            = api.Code("") // of a request that was not refused
)

// Observer is told of requests; metrics are one. Methods are called concurrently and must not block.
type Observer interface {
	RequestBegan()
	// StreamBegan is called within a request whose answer is a stream.
	StreamBegan()
	// RequestEnded comes once for each RequestBegan, after the answer, also after one that was cut off.
	RequestEnded(RequestEnd)
}

// RequestEnd is what became of a request.
type RequestEnd struct {
	Op       api.Op
	Code     api.Code // [CodeOK], or of the refusal
	Took     time.Duration
	Streamed bool
}

type unobserved struct{}

func (unobserved) RequestBegan()           {}
func (unobserved) StreamBegan()            {}
func (unobserved) RequestEnded(RequestEnd) {}

// began starts the account of x; the returned function ends it, and must be deferred: it runs
// when a handler panics to cut its connection, too. A request that was served gets its line of the
// log here, one that was refused got it from fail.
func (s *Server) began(x *exchange) (ended func()) {
	x.start = time.Now()
	x.op = OpUnrouted
	s.o.Observer.RequestBegan()
	return func() {
		took := time.Since(x.start)
		s.o.Observer.RequestEnded(RequestEnd{Op: x.op, Code: x.code, Took: took, Streamed: x.streamed})
		if x.code == CodeOK && x.op != OpLiveness {
			s.o.Log.InfoContext(x.r.Context(), "request served", "request", x.id, "op", x.op, "workspace", x.claims.WorkspaceID, "tookMs", took.Milliseconds())
		}
	}
}

// streams says that the answer of x is a stream.
func (s *Server) streams(x *exchange) {
	x.streamed = true
	s.o.Observer.StreamBegan()
}

// Of the log lines about requests that have not consumed a nonce, from all callers together. Lines
// of the others need no bound of their own: nonces are bounded.
const (
	strangerLines = 20 // in each interval
	strangerEvery = 10 * time.Second
)

// lineBudget bounds log lines that anybody can cause: 2 per second on average, which is about 60 MB
// a day at the most. What it swallows is counted and told by the first line after it.
type lineBudget struct {
	mu         sync.Mutex
	since      time.Time // guarded by mu
	written    int       // guarded by mu; in this interval
	suppressed uint64    // guarded by mu; since the last line
	total      uint64    // guarded by mu
}

// take says whether a line may be written at now, and how many were suppressed before it.
func (b *lineBudget) take(now time.Time) (ok bool, suppressed uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.since) >= strangerEvery {
		b.since, b.written = now, 0
	}
	if b.written >= strangerLines {
		b.suppressed++
		b.total++
		return false, 0
	}
	b.written++
	suppressed, b.suppressed = b.suppressed, 0
	return true, suppressed
}

// SuppressedLines is how many log lines about requests without authority were not written.
func (s *Server) SuppressedLines() uint64 {
	s.lines.mu.Lock()
	defer s.lines.mu.Unlock()
	return s.lines.total
}

// logRefusal writes the line of a refused request. What has not consumed a nonce costs its caller
// nothing, a replayed capability included, and is written within a budget.
func (s *Server) logRefusal(x *exchange, c call, code api.Code, cause string) {
	args := []any{
		"request", x.id, "op", c.op, "workspace", x.claims.WorkspaceID, "sandbox", c.sandbox,
		"code", code, "err", cause, "tookMs", time.Since(x.start).Milliseconds(),
	}
	if !x.admitted {
		ok, suppressed := s.lines.take(time.Now())
		if !ok {
			return
		}
		args = append(args, "suppressed", suppressed)
	}
	s.o.Log.Log(x.r.Context(), level(code), "request refused", args...)
}

// ConnectionCounts is the state of the listeners' connections.
type ConnectionCounts struct {
	Open    int    // that have a place
	Waiting int    // accepted, and waiting for a place
	Max     int    // places
	PutOut  uint64 // closed to make room for another
	Expired uint64 // closed for having proven nothing in time
}

// Connections returns the counts of all listeners together.
func (s *Server) Connections() ConnectionCounts {
	p := s.connections
	p.mu.Lock()
	defer p.mu.Unlock()
	return ConnectionCounts{Open: len(p.open), Waiting: p.waiting, Max: p.max, PutOut: p.putOut, Expired: p.expired}
}
