// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// heartbeatEvery is how long a stream is silent at most.
const heartbeatEvery = 5 * time.Second

// Execution is one caller's hold of an invocation; *session.Run is one. For one goroutine.
type Execution interface {
	// Next waits for the next chunk of output; io.EOF when the invocation has ended and all was
	// given, or ctx's error, after which it may be called again. The bytes must not be changed.
	Next(ctx context.Context) (stderr bool, chunk []byte, err error)
	// Ended is closed when the outcome is there.
	Ended() <-chan struct{}
	// Outcome waits for the end.
	Outcome() (api.ExecResult, error)
	// Close ends a command that still runs, and may be repeated.
	Close()
}

// stream answers with one line per event; see [api.ExecEvent]. From the first line on a failure is
// the last line. The output is kept by the session in any case, within the bound that the request
// asked for: a slow reader costs nothing more and slows nobody. One that takes nothing of a line for
// [answerTimeout] has left. After the end of the invocation all that is left has that time together,
// as a buffered answer has.
func (s *Server) stream(x *exchange, run Execution, id string) error {
	out := s.openLines(x)
	if err := out.write(api.ExecEvent{Type: api.ExecStarted, InvocationID: id}); err != nil {
		return err
	}
	for {
		select {
		case <-run.Ended():
			out.hurry()
		default:
		}
		stderr, chunk, err := next(run, s.heartbeat)
		ev := api.ExecEvent{Type: api.ExecStdout, Data: chunk}
		switch {
		case errors.Is(err, io.EOF):
			res, err := run.Outcome()
			if err != nil {
				return err
			}
			res.Stdout, res.Stderr = []byte{}, []byte{}
			return out.write(api.ExecEvent{Type: api.ExecEnded, Result: &res})
		case errors.Is(err, context.DeadlineExceeded):
			ev.Type = api.ExecHeartbeat
		case err != nil:
			return err
		case stderr:
			ev.Type = api.ExecStderr
		}
		if err := out.write(ev); err != nil {
			return err
		}
	}
}

// next waits at most d. The caller's own end needs no attention here: it ends the invocation.
func next(run Execution, d time.Duration) (stderr bool, chunk []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return run.Next(ctx)
}

// lines is an answer of one JSON text per line, each of which leaves at once.
type lines struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration // for one line
	fixed bool          // the deadline is not moved any more
	lost  error         // of the first line that could not be written; none is tried after it
}

// openLines writes the head of the answer. A failure of the handler is a last line from here on.
func (s *Server) openLines(x *exchange) *lines {
	l := &lines{w: x.w, rc: http.NewResponseController(x.w), limit: s.patience}
	x.w.Header().Set("Content-Type", api.TypeNDJSON)
	x.started = true
	s.streams(x)
	x.last = func(e api.ErrorDetail) error {
		return l.write(api.ExecEvent{Type: api.ExecFailed, Error: &e})
	}
	x.w.WriteHeader(http.StatusOK)
	return l
}

// hurry gives all that is still written one deadline together.
func (l *lines) hurry() {
	if !l.fixed && l.rc.SetWriteDeadline(time.Now().Add(l.limit)) == nil {
		l.fixed = true
	}
}

func (l *lines) write(ev api.ExecEvent) error {
	if l.lost != nil {
		return l.lost
	}
	b, err := strictjson.Marshal(ev)
	if err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	if !l.fixed {
		err = l.rc.SetWriteDeadline(time.Now().Add(l.limit))
	}
	if err == nil {
		_, err = l.w.Write(append(b, '\n'))
	}
	if err == nil {
		err = l.rc.Flush()
	}
	if err != nil {
		l.lost = api.E(api.StreamClosed, fmt.Errorf("write line: %w", err))
	}
	return l.lost
}
