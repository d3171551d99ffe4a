// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// transferChunk is what is moved between two settings of a deadline.
const transferChunk = 64 << 10

func (s *Server) fs(x *exchange, c call) error {
	var fc api.FSCall
	err := s.body(x, func(b []byte) (err error) {
		fc, err = api.DecodeFS(b)
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), fsTimeout)
	defer cancel()
	ctx, files, release, err := s.openFiles(ctx, x, c)
	if err != nil {
		return err
	}
	// Until the answer is written: a page of a list is the largest that there is besides output.
	defer release()
	res, err := runFS(ctx, files, fc)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, res)
}

// openFiles gives the workspace for one operation, within the bounds of those in progress.
func (s *Server) openFiles(ctx context.Context, x *exchange, c call) (context.Context, Files, func(), error) {
	give, err := s.fileOps.take(x.claims.WorkspaceID, 1)
	if err != nil {
		return nil, nil, nil, err
	}
	opened := false
	defer func() { // deferred, here and below: a panic must not keep the place
		if !opened {
			give()
		}
	}()
	ctx, files, release, err := s.o.OpenFiles(ctx, x.claims.WorkspaceID, c.sandbox)
	if err != nil {
		return nil, nil, nil, err
	}
	opened = true
	return ctx, files, func() { defer give(); release() }, nil
}

func runFS(ctx context.Context, files Files, fc api.FSCall) (res api.FSResponse, err error) {
	switch fc.Op {
	case api.FSStat:
		var e api.FSEntry
		e, err = files.Stat(ctx, fc.Path)
		res.Entry = &e
	case api.FSList:
		res.Entries, res.Cursor, err = files.List(ctx, fc.Path, fc.Cursor, fc.Rows)
	case api.FSMkdir:
		err = files.Mkdir(ctx, fc.Path)
	case api.FSRemove:
		err = files.Remove(ctx, fc.Path)
	case api.FSRename:
		err = files.Rename(ctx, fc.Path, fc.To)
	case api.FSReadlink:
		var to []byte
		if to, err = files.Readlink(ctx, fc.Path); utf8.Valid(to) {
			res.Target = string(to)
		} else {
			res.TargetBytes = to
		}
	default:
		err = errNoRoute
	}
	if err != nil {
		return api.FSResponse{}, err
	}
	return res, nil
}

func (s *Server) read(x *exchange, c call) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	fc, err := api.DecodeFileQuery(c.query, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), transferTimeout)
	defer cancel()
	ctx, files, release, err := s.openFiles(ctx, x, c)
	if err != nil {
		return err
	}
	defer release()
	f, size, err := files.Read(ctx, fc.Path)
	if err != nil {
		return err
	}
	rc := http.NewResponseController(x.w)
	x.w.Header().Set("Content-Type", "application/octet-stream")
	x.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	x.started = true
	x.w.WriteHeader(http.StatusOK)
	out := deadlined{write: x.w.Write, set: rc.SetWriteDeadline, limit: s.stall, ctx: ctx}
	defer context.AfterFunc(ctx, out.cut)()
	// A file that shrinks meanwhile cuts the answer short of its Content-Length.
	n, err := io.CopyBuffer(&out, io.LimitReader(f, size), make([]byte, transferChunk))
	if err == nil && n != size {
		err = fmt.Errorf("file of %d bytes ended after %d", size, n)
	}
	return errors.Join(err, f.Close())
}

// write checks claims, binding and lease before it reads a byte of the body.
func (s *Server) write(x *exchange, c call) error {
	if err := plain(x.r); err != nil {
		return err
	}
	fc, err := api.DecodeFileQuery(c.query, true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), transferTimeout)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(s.ending, func() { end(errEnding) })()
	ctx, files, release, err := s.openFiles(ctx, x, c)
	if err != nil {
		return err
	}
	defer release()
	rc := http.NewResponseController(x.w)
	src := &deadlined{read: x.r.Body.Read, set: rc.SetReadDeadline, limit: s.stall, ctx: ctx}
	defer context.AfterFunc(ctx, src.cut)()
	in := &signedBody{src: src, sum: sha256.New(), want: x.claims.Digest, trailers: func() bool { return len(x.r.Trailer) != 0 }}
	size, digest, err := files.Write(ctx, fc, in, x.claims.Digest)
	if err != nil {
		return errors.Join(in.refusal, err) // the reason first: it decides the code
	}
	if !in.whole || digest != x.claims.Digest {
		return api.E(api.Unavailable, errors.New("workspace answered before the body was whole"))
	}
	return x.answer(http.StatusOK, api.WriteResponse{Size: size, Digest: digest})
}

// signedBody ends in io.EOF only when what was read is what was signed, and nothing came behind it.
type signedBody struct {
	src      io.Reader
	sum      hash.Hash
	want     string
	trailers func() bool // whether there are some; at the end, since not all are announced
	whole    bool
	refusal  error
}

func (b *signedBody) Read(p []byte) (int, error) {
	if b.refusal != nil {
		return 0, b.refusal
	}
	n, err := b.src.Read(p)
	b.sum.Write(p[:n])
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF) && b.trailers():
		b.refusal = errTrailers
	case errors.Is(err, io.EOF):
		if digestText(b.sum) == b.want {
			b.whole = true
			return n, io.EOF
		}
		b.refusal = api.E(api.Unauthenticated, errors.New("body is not the one that was signed"))
	default:
		b.refusal = bodyError(err) // the sandbox's end has a code, and the end of the operation's time
	}
	return n, b.refusal
}

// deadlined moves a deadline along with progress, so that a stalled peer ends and a slow one
// does not, within the bound that ctx gives the whole.
type deadlined struct {
	read, write func([]byte) (int, error)
	set         func(time.Time) error
	limit       time.Duration
	ctx         context.Context

	mu sync.Mutex // cut's deadline must be the last one
}

// cut ends the step in progress; it is for the end of ctx. Later steps see ctx.
func (d *deadlined) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.set(time.Now()) // fails on a connection that is gone: then the step has ended
}

func (d *deadlined) move(to time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return d.ended()
	}
	if err := d.set(to); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	return nil
}

// ended says why ctx has ended. A deadline that has passed there is the API's own, not a caller's fault.
func (d *deadlined) ended() error {
	cause := context.Cause(d.ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return api.E(api.Timeout, cause)
	}
	return cause
}

func (d *deadlined) step(f func([]byte) (int, error), p []byte) (int, error) {
	if err := d.move(time.Now().Add(d.limit)); err != nil {
		return 0, err
	}
	n, err := f(p)
	if err != nil && !errors.Is(err, io.EOF) && d.ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", d.ended(), err)
	}
	return n, err
}

// Read implements [io.Reader].
func (d *deadlined) Read(p []byte) (int, error) {
	n, err := d.step(d.read, p)
	if errors.Is(err, io.EOF) {
		// Left in place it would end the request's context while the file is put in place.
		if merr := d.move(time.Time{}); merr != nil {
			return n, merr
		}
	}
	return n, err
}

// Write implements [io.Writer].
func (d *deadlined) Write(p []byte) (int, error) { return d.step(d.write, p) }
