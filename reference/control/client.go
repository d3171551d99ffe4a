// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
)

// Bounds of the worker's end.
const (
	// TerminateWithin bounds what the supervisor may need to end an invocation after its
	// timeout or a cancel: grace, sweeps, drain, and room for a loaded machine.
	TerminateWithin = 10 * time.Second
	// maxCalls bounds the requests in flight on one bridge.
	maxCalls = 64
)

// ErrLost says that the bridge or the keeper of an invocation is gone, or that the sandbox
// broke the protocol. Nothing is known of what ran: the sandbox must be replaced.
var ErrLost = errors.New("supervisor lost")

// ErrBusy says that the supervisor runs as many invocations as it may, or serves a look. Nothing was started.
var ErrBusy = errors.New("supervisor is busy")

// SpawnError says that no process of the tenant was started. A command that is not there or not
// executable is no SpawnError but exit code 127 or 126.
type SpawnError struct {
	Step  Step
	Errno syscall.Errno
}

func (e *SpawnError) Error() string {
	if e.Step == StepCwd {
		return "enter working directory: " + e.Errno.Error()
	}
	return "start process: " + e.Errno.Error()
}

// Unwrap returns the errno, so that errors.Is(err, syscall.EAGAIN) works.
func (e *SpawnError) Unwrap() error { return e.Errno }

// Client is the worker's end of one bridge. All methods are safe for concurrent use.
type Client struct {
	rw        io.ReadWriteCloser
	challenge [ChallengeSize]byte

	sendMu sync.Mutex
	seq    uint64

	looking chan struct{} // holds the one look that is under way

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*call
	err   error
	done  chan struct{}
}

// Sink takes the output of one command as it arrives: stream is 1 (stdout) or 2 (stderr), data is
// what the command wrote, in order, and only valid during the call. Together the calls never exceed
// the budget of the command. It is called by the goroutine that reads the bridge, which serves every
// other command of the sandbox too: it must not block and must not use the [Client]. It is not
// called any more once [Client.Stream] has returned.
type Sink func(stream uint8, data []byte)

// call is one request in flight. The reader owns out, sent and budget until it closes done.
type call struct {
	want    Type // reply that ends it; Result stands for every end of an exec
	out     Outcome
	sink    Sink
	sent    [2]uint64 // bytes of stdout and of stderr that came
	budget  int64
	payload []byte
	err     error
	done    chan struct{}
}

// Connect reads the hello, proves liveness with one ping and returns the client. It owns rw
// from then on and closes it on any error, and when ctx ends before it returns. rw.Close must
// unblock a Read or Write in progress.
func Connect(ctx context.Context, rw io.ReadWriteCloser) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { rw.Close() })
	defer stop()
	f, err := ReadReply(rw)
	if err == nil && f.Type != Hello {
		err = fmt.Errorf("%w: type %#x instead of hello", ErrFrame, byte(f.Type))
	}
	if err != nil {
		rw.Close()
		return nil, fmt.Errorf("read hello: %w", errors.Join(ErrLost, ctx.Err(), err))
	}
	c := &Client{rw: rw, looking: make(chan struct{}, 1), calls: map[uint64]*call{}, done: make(chan struct{})}
	copy(c.challenge[:], f.Payload)
	go c.readLoop()
	if err := c.Ping(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("first ping: %w", err)
	}
	return c, nil
}

// Done is closed when the bridge is lost or closed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the bridge ended, matching [ErrLost], or nil while it lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the bridge; the supervisor then ends every invocation of it. Close is idempotent.
func (c *Client) Close() error {
	c.fail(errors.New("closed by the worker"))
	return nil
}

// Ping returns nil when the supervisor answered.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.simple(ctx, Ping, Pong)
	return err
}

// Statfs asks for the size of /workspace as the sandbox's kernel sees it.
func (c *Client) Statfs(ctx context.Context) (Statfs, error) {
	b, err := c.simple(ctx, StatFS, StatFSReply)
	if err != nil {
		return Statfs{}, err
	}
	return c.parsedStatfs(b)
}

// Stats asks for the supervisor's counters; package supervisor lists their names.
func (c *Client) Stats(ctx context.Context) (map[string]uint64, error) {
	b, err := c.simple(ctx, Stats, StatsReply)
	if err != nil {
		return nil, err
	}
	m, err := parseCounters(b)
	if err != nil {
		return nil, c.fail(err)
	}
	return m, nil
}

func (c *Client) parsedStatfs(b []byte) (Statfs, error) {
	s, err := parseStatfs(b)
	if err != nil {
		return s, c.fail(err)
	}
	return s, nil
}

// Exec runs one command and returns its outcome with all of its output; see [Client.Stream].
func (c *Client) Exec(ctx context.Context, s Spawn) (Outcome, error) {
	var kept [2][]byte
	out, err := c.Stream(ctx, s, func(stream uint8, data []byte) {
		kept[stream-1] = append(kept[stream-1], data...)
	})
	out.Stdout, out.Stderr = kept[0], kept[1]
	return out, err
}

// Stream runs one command, gives its output to sink as it arrives, and returns the outcome without
// output. Nothing of the output is kept here.
//
// When ctx ends first, the command is cancelled and Stream waits at most [TerminateWithin] for
// what the supervisor says of it: then both the outcome and ctx's error are returned, and CleanupProven
// means what it always means. With ctx's error alone nothing was started, and it is set too. A command
// that gives no outcome within its own timeout plus [TerminateWithin] loses the bridge.
// Errors: [ErrLost], [ErrBusy], *[SpawnError], [ErrFrame] for a spawn that breaks its bounds.
func (c *Client) Stream(ctx context.Context, s Spawn, sink Sink) (Outcome, error) {
	if err := s.Check(); err != nil {
		return Outcome{}, fmt.Errorf("check spawn: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return Outcome{CleanupProven: true}, err // nothing was started
	}
	id, k, err := c.open(Result, s.MaxOutput, sink)
	if err != nil {
		return Outcome{}, err
	}
	limit := time.NewTimer(s.Timeout + TerminateWithin)
	defer limit.Stop()
	payload := s.Encode()
	err = c.send(Frame{Type: s.Type(), Request: id, Payload: payload})
	clear(payload) // it may hold a secret
	if err != nil {
		return Outcome{}, err
	}
	cancelled := ctx.Done()
	for {
		select {
		case <-k.done:
			if k.err == nil {
				k.err = ctx.Err() // both: the outcome is true, and the caller had gone
			}
			return k.out, k.err
		case <-cancelled:
			cancelled = nil
			limit.Reset(TerminateWithin)
			if err := c.send(Frame{Type: Cancel, Request: id}); err != nil {
				return Outcome{}, err
			}
		case <-limit.C:
			return Outcome{}, c.fail(errors.New("no outcome in time"))
		}
	}
}

// simple sends a request without a payload. A reply that comes after ctx has ended is dropped.
func (c *Client) simple(ctx context.Context, req, want Type) ([]byte, error) {
	id, k, err := c.open(want, 0, nil)
	if err != nil {
		return nil, err
	}
	if err := c.send(Frame{Type: req, Request: id}); err != nil {
		return nil, err
	}
	select {
	case <-k.done:
		return k.payload, k.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Client) open(want Type, budget int64, sink Sink) (uint64, *call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return 0, nil, c.err
	case len(c.calls) >= maxCalls:
		return 0, nil, fmt.Errorf("%w: %d requests in flight", ErrBusy, maxCalls)
	}
	c.next++
	k := &call{want: want, budget: budget, sink: sink, done: make(chan struct{})}
	c.calls[c.next] = k
	return c.next, k, nil
}

// send writes one request. A write that does not end within [FrameWithin] loses the bridge: the
// other end is the sandbox, which may simply not read.
func (c *Client) send(f Frame) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	b := AppendRequest(make([]byte, 0, HeaderSize+len(f.Payload)+MACSize), &c.challenge, c.seq, f)
	defer clear(b) // it may hold a secret, and has not been moved
	c.seq++
	watch := time.AfterFunc(FrameWithin, func() { c.fail(ErrSlow) })
	defer watch.Stop()
	if _, err := c.rw.Write(b); err != nil {
		return c.fail(fmt.Errorf("write request: %w", err))
	}
	return nil
}

// fail ends the bridge once and every call with it; it returns the error that ended it.
func (c *Client) fail(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", ErrLost, cause)
		for id, k := range c.calls {
			k.err = c.err
			close(k.done)
			delete(c.calls, id)
		}
		c.rw.Close()
		close(c.done)
	}
	return c.err
}
