// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

var errSilent = errors.New("the stream fell silent")

// stream is an answer that comes line by line, for one goroutine. It holds at most one line.
type stream struct {
	op     api.Op
	body   io.ReadCloser
	lines  *bufio.Scanner
	ctx    context.Context
	cancel context.CancelCauseFunc
	alarm  *time.Timer // ends the stream when it falls silent
	within time.Duration
}

// stream sends req and returns the answer, if it is one of media. A refusal is its error. The
// context is the stream's own life: nothing of it is left after close.
func (c *Client) stream(ctx context.Context, req RawRequest, media string, maxLine int) (*stream, error) {
	if _, err := c.known(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{op: req.Op, ctx: ctx, cancel: cancel, within: c.cfg.Silence}
	s.alarm = time.AfterFunc(s.within, func() { cancel(errSilent) })
	res, err := c.open(ctx, req, nil)
	if err != nil {
		s.stop()
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer s.stop()
		raw, err := finish(req.Op, res, api.MaxAnswerBytes)
		if err != nil {
			return nil, err
		}
		if raw.Code == api.Unauthenticated {
			_, _ = c.Health(ctx) // the next request knows a new boot epoch; this one is not repeated
		}
		return nil, raw.into(http.StatusOK, nil)
	}
	s.body, s.lines = res.Body, bufio.NewScanner(res.Body)
	s.lines.Buffer(nil, maxLine)
	s.lines.Split(wholeLines)
	if err := typed(res.Header, media); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// wholeLines gives what an LF ends, without it. What is left at the end is no line.
func wholeLines(data []byte, atEOF bool) (int, []byte, error) {
	n, line, err := bufio.ScanLines(data, false)
	if n == 0 && atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return n, line, err
}

// line waits for the next line. The bytes hold until the next call. The end of the stream is
// OUTCOME_UNKNOWN for exec and STREAM_CLOSED else; a line that is too long is RESPONSE_INVALID.
func (s *stream) line() ([]byte, error) {
	s.alarm.Reset(s.within)
	if s.lines.Scan() {
		return s.lines.Bytes(), nil
	}
	err := s.lines.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, api.E(api.ResponseInvalid, err)
	case s.ctx.Err() != nil:
		err = context.Cause(s.ctx)
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	return nil, lost(s.op, err)
}

// end demands that nothing follows.
func (s *stream) end() error {
	s.alarm.Reset(s.within)
	if s.lines.Scan() {
		return api.E(api.ResponseInvalid, fmt.Errorf("%d bytes behind the last event", len(s.lines.Bytes())))
	}
	switch err := s.lines.Err(); {
	case s.ctx.Err() != nil:
		return lost(s.op, context.Cause(s.ctx))
	case err != nil:
		return api.E(api.ResponseInvalid, fmt.Errorf("behind the last event: %w", err))
	}
	return nil
}

func (s *stream) stop() {
	s.alarm.Stop()
	s.cancel(nil)
}

// close ends the connection, whatever is still to come.
func (s *stream) close() {
	s.stop()
	_ = s.body.Close() // nothing that it could say counts any more
}
