// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// server answers the control socket.
type server struct {
	audit  *audit
	pool   *pool
	looker *looker
	slots  chan struct{}
}

// serve accepts until the listener is closed. Running out of descriptors or memory is no reason to
// stop: it ends when others let go.
func (s *server) serve(l *net.UnixListener) error {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			s.audit.line("accept: " + err.Error())
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p, err := checkPeer(c)
		if err != nil {
			s.refuse(c, p, err)
			continue
		}
		select {
		case s.slots <- struct{}{}:
			go func() {
				defer func() { <-s.slots }()
				s.connection(c, p)
			}()
		default:
			s.refuse(c, p, errPeer("busy"))
		}
	}
}

func (s *server) refuse(c net.Conn, p peer, err error) {
	reason := errPeer("cred")
	errors.As(err, &reason)
	c.Close()
	s.audit.refuse(string(reason), p)
}

// connection serves one authorised peer. When it ends, every invocation that it started ends.
func (s *server) connection(c *net.UnixConn, p peer) {
	s.audit.count("accepted", 1)
	conn, err := control.Accept(c)
	if err != nil {
		s.refuse(c, p, errPeer("hello")) // typical of a peer that has exited
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	runs := &runs{cancels: map[uint64]context.CancelFunc{}}
	for {
		fresh := !conn.Proven()
		f, err := conn.Receive()
		if err == nil && fresh && !p.same() {
			err = errPeer("peer")
		}
		if err == nil {
			err = s.request(ctx, conn, runs, f)
		}
		if err != nil {
			if reason := reasonOf(err, conn.Proven()); reason != "" {
				s.refuse(c, p, errPeer(reason))
			}
			return
		}
	}
}

// reasonOf names why a connection ended, "" for a proven peer that just left.
func reasonOf(err error, proven bool) string {
	var p errPeer
	switch {
	case errors.As(err, &p):
		return string(p)
	case errors.Is(err, control.ErrMAC):
		return "mac"
	case errors.Is(err, control.ErrFrame):
		return "frame"
	case errors.Is(err, control.ErrSlow):
		return "slow"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "frame"
	case !proven:
		return "silent"
	}
	return ""
}

// request answers one authenticated frame. An error ends the connection.
func (s *server) request(ctx context.Context, conn *control.Conn, runs *runs, f control.Frame) error {
	s.audit.count("requests", 1)
	reply := control.Frame{Request: f.Request}
	switch f.Type {
	case control.Ping:
		reply.Type = control.Pong
	case control.StatFS:
		var st unix.Statfs_t
		if err := unix.Statfs(Workspace, &st); err != nil {
			s.audit.line("statfs: " + err.Error()) // all zero is no filesystem: the worker refuses it
		}
		reply.Type = control.StatFSReply
		reply.Payload = control.Statfs{Blocks: st.Blocks, BlockSize: uint64(st.Bsize), Inodes: st.Files}.Encode()
	case control.Stats:
		reply.Type, reply.Payload = control.StatsReply, control.EncodeCounters(s.audit.snapshot())
	case control.Look:
		paths, err := control.ParseLook(f.Payload)
		if err != nil {
			return err
		}
		done, busy := s.looker.look(paths)
		if busy {
			reply.Type, reply.Payload = control.Refused, []byte{control.RefusedBusy}
			break
		}
		s.audit.count("looks", 1)
		go func() {
			reply.Type, reply.Payload = control.Looked, control.EncodeLooked(done())
			if conn.Send(reply) != nil {
				conn.Close()
			}
		}()
		return nil
	case control.Cancel:
		runs.cancel(f.Request)
		return nil
	case control.Exec, control.ExecSecret:
		spawn, err := control.ParseSpawn(f.Type, f.Payload)
		if err != nil {
			clear(f.Payload)
			return err
		}
		ctx, done, ok := runs.add(ctx, f.Request)
		if !ok {
			clear(f.Payload)
			return control.ErrFrame // the id is in use
		}
		go func() {
			defer done()
			defer clear(f.Payload) // it may hold a secret; what was passed on is a copy
			s.invoke(ctx, conn, f, spawn.ID, spawn.Timeout)
		}()
		return nil
	}
	return conn.Send(reply)
}

// invoke runs one command in a keeper and relays what it says.
func (s *server) invoke(ctx context.Context, conn *control.Conn, exec control.Frame, name string, timeout time.Duration) {
	send := func(f control.Frame) {
		f.Request = exec.Request
		if conn.Send(f) != nil {
			conn.Close() // its reader then cancels every invocation of it
		}
	}
	begun := time.Now()
	h, id, busy, err := s.pool.get(ctx, exec.Type == control.ExecSecret)
	switch {
	case busy:
		send(control.Frame{Type: control.Refused, Payload: []byte{control.RefusedBusy}})
		return
	case err != nil:
		send(control.Frame{Type: control.SpawnFailed, Payload: control.EncodeSpawnFailed(control.StepFork, uint32(errnoOf(err)))})
		return
	}
	s.audit.count("invocations", 1)
	ended, watched := make(chan struct{}), make(chan struct{})
	var gaveUp bool
	var by time.Time
	go func() {
		defer close(watched)
		gaveUp, by = s.giveUp(ctx, h.child, begun, timeout, ended)
	}()

	last := control.Frame{Type: control.Lost}
	err = h.write(control.Frame{Type: exec.Type, Request: id, Payload: exec.Payload})
	clear(exec.Payload)
	if err == nil {
		// Only now: a cancel that overtakes its exec would be lost.
		stop := context.AfterFunc(ctx, func() { h.write(control.Frame{Type: control.Cancel, Request: id}) })
		last = relay(h, send)
		stop()
	}
	close(ended)
	<-watched
	proven := !gaveUp && clean(last)
	if proven {
		last, proven = s.swept(last, id, by.Add(straysMargin))
	}
	// A clean keeper goes back before the outcome leaves, so that the next command finds it; the end of
	// any other takes time that the worker need not wait.
	if proven {
		s.pool.put(h, true)
		send(last)
		return
	}
	send(unproven(last))
	s.audit.line(fmt.Sprintf("invocation not proven to have ended id=%q", name))
	s.pool.put(h, false)
}

// unproven is an outcome of which nobody but the keeper says that nothing is left.
func unproven(last control.Frame) control.Frame {
	if last.Type != control.Result {
		return last
	}
	sum, err := control.ParseSummary(last.Payload)
	if err != nil {
		return control.Frame{Type: control.Lost}
	}
	sum.Proven = false
	last.Payload = sum.Encode()
	return last
}

// giveUp ends a keeper and its tree when it says no end of its invocation in time, counted from the
// time-out or the cancel. The worker's clock runs since the request has begun, whatever the start of a keeper
// took. It returns whether it did, and by when the end had to come.
func (s *server) giveUp(ctx context.Context, keeper *child, begun time.Time, timeout time.Duration, ended <-chan struct{}) (gaveUp bool, by time.Time) {
	const end = Grace + KillWithin + keeperMargin
	cancelled := ctx.Done()
	by = begun.Add(timeout + end)
	if ctx.Err() != nil { // before there was a keeper
		cancelled, by = nil, begun.Add(end)
	}
	late := time.NewTimer(time.Until(by))
	defer late.Stop()
	for {
		select {
		case <-ended:
			return false, by
		case <-cancelled:
			cancelled = nil
			by = time.Now().Add(end)
			late.Reset(end)
		case <-late.C:
			s.pool.reaper.killTree(keeper)
			return true, by
		}
	}
}

// relay passes output on and returns the frame that ends the invocation.
func relay(h *handle, send func(control.Frame)) control.Frame {
	r := control.NewReplies(bufio.NewReaderSize(h.conn, 4<<10))
	for {
		f, err := r.Next()
		if err != nil {
			return control.Frame{Type: control.Lost}
		}
		if f.Type != control.Output {
			return f
		}
		send(f)
	}
}

// swept completes an outcome that the keeper calls proven: the keeper sees its own descendants only, and a
// kernel may have given one of them to somebody else. The rest is PID 1's to look for, and to count, until the
// deadline.
//
// What is killed there counts for an invocation that nobody else ran beside: then it was its own. Else nobody can
// tell whose it was, and a neighbour must not be able to write it down to this one.
func (s *server) swept(last control.Frame, id uint64, deadline time.Time) (_ control.Frame, proven bool) {
	if last.Type == control.SpawnFailed {
		return last, true // the tenant had no word
	}
	sum, err := control.ParseSummary(last.Payload)
	if err != nil {
		return last, false
	}
	if bound := time.Now().Add(KillWithin); bound.Before(deadline) {
		deadline = bound
	}
	killed, none := s.pool.reaper.sweep(deadline)
	if !s.pool.accompanied(id) {
		sum.Killed += uint64(killed)
	}
	sum.Proven = none
	last.Payload = sum.Encode()
	return last, none
}

// clean says whether the keeper has proven that nothing is left.
func clean(last control.Frame) bool {
	if last.Type == control.SpawnFailed {
		return true // the launch stage was reaped, and has executed nothing of the tenant's
	}
	sum, err := control.ParseSummary(last.Payload)
	return last.Type == control.Result && err == nil && sum.Proven
}

// runs are the invocations of one connection.
type runs struct {
	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
}

func (r *runs) add(parent context.Context, id uint64) (context.Context, func(), bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancels[id] != nil {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(parent)
	r.cancels[id] = cancel
	return ctx, func() {
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.cancels, id)
	}, true
}

func (r *runs) cancel(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.cancels[id]; c != nil {
		c()
	}
}
