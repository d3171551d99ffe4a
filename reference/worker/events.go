// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// lastWords is how long the end of a stream of changes may take to reach its reader. Nothing
// waits for it but the connection itself.
const lastWords = time.Second

// events answers with server-sent events (the HTML standard, section 9.2):
//
//	: ready                   a comment: nothing after it is missed
//	event: change             with an [api.ChangeEvent]
//	data: {"type":"created","path":"a","kind":"file"}
//	: heartbeat               after 10 s without anything
//	event: end                with an [api.ErrorDetail]: the sandbox retires, or the worker drains
//	data: {"code":...}
//
// each ended by an empty line; JSON has no line end in it. A stream that ends without the end event has lost changes. It
// is no use of the sandbox. A reader that takes nothing for [answerTimeout] has left; a slow
// one is told of an overflow in place of what it did not take.
func (s *Server) events(x *exchange, c call) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	peer, stop := whilePeer(x.r.Context())
	defer stop()
	ctx, cancel := context.WithCancelCause(peer)
	defer cancel(nil)
	defer context.AfterFunc(s.leaving, func() { cancel(api.E(api.Unavailable, errors.New("shutting down"))) })()
	life, changes, release, err := s.o.OpenChanges(ctx, x.claims.WorkspaceID, c.sandbox)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(whyEnded(ctx), err)
		}
		return err
	}
	defer release()
	out := s.openEvents(x)
	defer context.AfterFunc(life, out.hurry)()
	if err := out.write(": ready\n\n"); err != nil {
		return err
	}
	for {
		ev, err := s.nextChange(life, changes)
		switch {
		case err == nil:
			err = out.event("change", ev)
		case life.Err() != nil:
			return whyEnded(life)
		case errors.Is(err, context.DeadlineExceeded):
			err = out.write(": heartbeat\n\n")
		}
		if err != nil {
			return err
		}
	}
}

// whyEnded says why a stream of changes is over.
func whyEnded(life context.Context) error {
	cause := context.Cause(life)
	if errors.Is(cause, errPeerLeft) {
		return api.E(api.ExecAborted, cause)
	}
	return cause
}

// nextChange waits for one heartbeat's time at most, which is twice that of an exec stream: 10 s.
func (s *Server) nextChange(life context.Context, changes Changes) (api.ChangeEvent, error) {
	ctx, cancel := context.WithTimeout(life, 2*s.heartbeat)
	defer cancel()
	return changes.Next(ctx)
}

// eventLines is an answer of server-sent events, each of which leaves at once.
type eventLines struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration // for one event

	mu    sync.Mutex // hurry's deadline must be the last one
	fixed bool
	lost  error // of the first that could not be written; none is tried after it
}

// openEvents writes the head of the answer. A failure of the handler is an end event from here on.
func (s *Server) openEvents(x *exchange) *eventLines {
	o := &eventLines{w: x.w, rc: http.NewResponseController(x.w), limit: s.patience}
	x.w.Header().Set("Content-Type", api.TypeEvents)
	x.w.Header().Set("Cache-Control", "no-store")
	x.started = true
	s.streams(x)
	x.last = func(e api.ErrorDetail) error { return o.event("end", e) }
	x.w.WriteHeader(http.StatusOK)
	return o
}

// hurry gives what is being written, and the end event, their time.
func (o *eventLines) hurry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fixed = o.rc.SetWriteDeadline(time.Now().Add(lastWords)) == nil // else the connection is gone
}

func (o *eventLines) deadline() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fixed {
		return nil
	}
	return o.rc.SetWriteDeadline(time.Now().Add(o.limit))
}

func (o *eventLines) event(name string, v any) error {
	b, err := strictjson.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return o.write("event: " + name + "\ndata: " + string(b) + "\n\n")
}

func (o *eventLines) write(text string) error {
	if o.lost != nil {
		return o.lost
	}
	err := o.deadline()
	if err == nil {
		_, err = o.w.Write([]byte(text))
	}
	if err == nil {
		err = o.rc.Flush()
	}
	if err != nil {
		o.lost = api.E(api.StreamClosed, fmt.Errorf("write event: %w", err))
	}
	return o.lost
}
