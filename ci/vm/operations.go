// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

// File is one file or folder to copy into the guest.
type File struct {
	From string // on the host
	As   string // below the folder of the guest; "" is the last element of From
}

// Put copies files and folders into a folder of the guest, which is made.
func (m *Machine) Put(ctx context.Context, dir string, files ...File) error {
	return m.operation(ctx, "copy into the guest", func(ctx context.Context) error {
		if err := m.send(ctx, link.Put, dir); err != nil {
			return err
		}
		t := tar.NewWriter(writer{m, ctx})
		for _, f := range files {
			if err := link.Pack(t, f.From, f.As); err != nil {
				return err
			}
		}
		if err := t.Close(); err != nil {
			return err
		}
		if err := m.write(ctx, link.End, nil); err != nil {
			return err
		}
		kind, body, err := m.next(ctx)
		if err != nil {
			return err
		}
		return done(kind, body)
	})
}

// Get copies files and folders of the guest into a folder of the host, which is made: at most limit bytes, and
// nothing but folders and regular files.
func (m *Machine) Get(ctx context.Context, dir string, limit int64, paths ...string) error {
	return m.operation(ctx, "copy out of the guest", func(ctx context.Context) error {
		if err := m.send(ctx, link.Get, paths); err != nil {
			return err
		}
		r, w := io.Pipe()
		unpacked := make(chan error, 1)
		go func() {
			err := link.Unpack(r, dir, limit)
			r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
			unpacked <- err
		}()
		var last error
		for last == nil {
			kind, body, err := m.next(ctx)
			switch {
			case err != nil:
				last = err
			case kind == link.Data:
				_, last = w.Write(body)
			default:
				w.Close()
				return errors.Join(done(kind, body), <-unpacked)
			}
		}
		w.CloseWithError(last)
		return errors.Join(<-unpacked, last)
	})
}

// Run runs one command as root in the guest, with its output as it comes. The command's own end, also by its
// time-out, which must be positive and is of the guest's clock, is a result; an error says that there is none.
func (m *Machine) Run(ctx context.Context, cmd link.Command, timeout time.Duration, stdout, stderr io.Writer) (link.Result, error) {
	var res link.Result
	cmd.Timeout = timeout.Milliseconds()
	err := m.operation(ctx, "run "+first40(cmd.Argv), func(ctx context.Context) error {
		// The guest ends the command by its own clock; this is the host's bound on a guest that does not.
		ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(m.cfg.Slowdown)*timeout+m.cfg.Silence, fmt.Errorf("%w: a command that it should have ended after %s goes on", ErrSilent, timeout))
		defer cancel()
		if err := m.send(ctx, link.Run, cmd); err != nil {
			return err
		}
		for {
			kind, body, err := m.next(ctx)
			if err != nil {
				return err
			}
			switch kind {
			case link.Stdout:
				_, err = stdout.Write(body)
			case link.Stderr:
				_, err = stderr.Write(body)
			case link.Exit:
				return unmarshal(body, &res)
			default:
				err = fmt.Errorf("%w: %d while a command runs", link.ErrFrame, kind)
			}
			if err != nil {
				return err
			}
		}
	})
	return res, err
}

func first40(argv []string) string {
	if len(argv) == 0 {
		return "nothing"
	}
	return argv[0][:min(40, len(argv[0]))]
}

// operation does one thing. One that fails half-way leaves the two sides out of step: nothing follows it.
func (m *Machine) operation(ctx context.Context, what string, f func(context.Context) error) error {
	if m.broken != nil {
		return fmt.Errorf("%s: an earlier operation was cut short: %w", what, m.broken)
	}
	err := f(ctx)
	var told guestError
	if err == nil || errors.As(err, &told) {
		return err
	}
	m.broken = err
	return fmt.Errorf("%s: %w", what, m.explain(err))
}

// guestError is what the guest says went wrong; it and the host are still in step.
type guestError string

func (e guestError) Error() string { return "the guest: " + string(e) }

func done(kind link.Kind, body []byte) error {
	if kind != link.Done {
		return fmt.Errorf("%w: %d at the end of an archive", link.ErrFrame, kind)
	}
	if len(body) > 0 {
		return guestError(printable(body))
	}
	return nil
}

func (m *Machine) send(ctx context.Context, kind link.Kind, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return m.write(ctx, kind, body)
}

type writer struct {
	m   *Machine
	ctx context.Context
}

func (w writer) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		part := p[n:min(len(p), n+link.MaxFrame)]
		if err := w.m.write(w.ctx, link.Data, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// write sends one frame. A guest that takes nothing for the time of silence does not answer.
func (m *Machine) write(ctx context.Context, kind link.Kind, body []byte) error {
	return m.bounded(ctx, m.cfg.Silence, m.port.SetWriteDeadline, func() error { return m.conn.Write(kind, body) })
}

// next receives the next frame that is no beat.
func (m *Machine) next(ctx context.Context) (link.Kind, []byte, error) {
	for {
		kind, body, err := m.receive(ctx, m.cfg.Silence)
		if err != nil || kind != link.Beat {
			return kind, body, err
		}
	}
}

func (m *Machine) receive(ctx context.Context, silence time.Duration) (kind link.Kind, body []byte, err error) {
	err = m.bounded(ctx, silence, m.port.SetReadDeadline, func() error {
		kind, body, err = m.conn.Read()
		return err
	})
	return kind, body, err
}

// bounded does one transfer until the context ends or the guest has been silent for too long.
func (m *Machine) bounded(ctx context.Context, silence time.Duration, deadline func(time.Time) error, transfer func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := deadline(time.Now().Add(silence)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = deadline(time.Unix(1, 0)) })
	err := transfer()
	stop()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: it has said nothing for %s", ErrSilent, silence)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrClosed), isGone(err):
		return ErrEnded
	}
	return err
}

func unmarshal(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", link.ErrFrame, err)
	}
	return nil
}

// isGone says that the emulator has closed its end.
func isGone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
