// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// workspaceCodes gives each kind of workspace failure its code. PATH_UNSAFE is for unsafe paths
// only; kinds without a code of their own take the nearest.
func workspaceCodes() []struct {
	kind error
	code api.Code
} {
	return []struct {
		kind error
		code api.Code
	}{
		{workspace.ErrUnsafe, api.PathUnsafe},
		{workspace.ErrNotFound, api.PathNotFound},
		{workspace.ErrNotDir, api.PathNotFound},
		{workspace.ErrExists, api.AlreadyExists},
		{workspace.ErrNotEmpty, api.AlreadyExists}, // rmdir(2): POSIX allows EEXIST for ENOTEMPTY
		{workspace.ErrIsDir, api.RequestInvalid},
		{workspace.ErrAccess, api.RequestInvalid},
		{workspace.ErrQuota, api.QuotaExceeded},
		{workspace.ErrPrimitive, api.PathPrimitiveUnavailable},
		{workspace.ErrDigest, api.Unauthenticated},   // the body is not the one that was signed
		{workspace.ErrSize, api.IdempotencyConflict}, // perhaps this very append was done before
		{workspace.ErrRequest, api.RequestInvalid},
		{workspace.ErrNotLink, api.RequestInvalid},
		{workspace.ErrBody, api.RequestInvalid},
		{workspace.ErrMoved, api.Unavailable},
		{workspace.ErrClosed, api.Unavailable},
	}
}

// codeOf maps any failure to the union. The innermost decision wins: a code that is already
// there is kept, unless it is not of the union.
func codeOf(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		if e.Code.Known() {
			return e.Code
		}
		return api.Unavailable
	}
	for _, row := range workspaceCodes() {
		if errors.Is(err, row.kind) {
			return row.code
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return api.Timeout
	case errors.Is(err, context.Canceled):
		return api.ExecAborted // the caller has gone
	}
	return api.Unavailable
}

// level is Warn for what the worker or its host did, Info for what the caller did.
func level(c api.Code) slog.Level {
	if c.Status() >= 500 {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// maxCauseBytes bounds what one failure writes to the log: a cause may quote a path or a name
// that the caller chose.
const maxCauseBytes = 2 << 10

// cause is the text of err for the log. Errors of this project quote no contents; what a library
// quotes is not in our hands, so the request's own bearer token is taken out wherever it is.
func (x *exchange) cause(err error) string {
	text := err.Error()
	if token, terr := bearer(x.r.Header); terr == nil && len(token) >= minSecretBytes {
		text = strings.ReplaceAll(text, token, "[token]")
	}
	if len(text) > maxCauseBytes {
		text = text[:maxCauseBytes] + "..."
	}
	return text
}

// minSecretBytes is how long a text must be to be taken for a token: a shorter one is none, and
// would only cut holes into the log.
const minSecretBytes = 16

// panicCause says of a panic what cannot hold a caller's data: the text of the Go runtime (an
// index, a type, a nil map), else the type of the value alone. The stack beside it has addresses,
// no contents.
func panicCause(p any) string {
	if e, ok := p.(runtime.Error); ok {
		return e.Error()
	}
	return fmt.Sprintf("a %T", p)
}

// part ends the connection with this answer when it is a stranger's, or when the worker drains.
func (s *Server) part(x *exchange) {
	if c := connOf(x.r.Context()); s.draining.Load() || c != nil && c.pool.isStranger(c) {
		x.w.Header().Set("Connection", "close")
	}
}

// unparsed is the answer to what net/http could not parse. The codes of the union have no other
// for it, so the status is that of REQUEST_INVALID; said is net/http's own status line.
func (s *Server) unparsed(ctx context.Context, said string) []byte {
	id, code := requestID(), api.RequestInvalid
	s.o.Observer.RequestBegan()
	s.o.Observer.RequestEnded(RequestEnd{Op: OpUnparsed, Code: code})
	if ok, suppressed := s.lines.take(time.Now()); ok {
		s.o.Log.Log(ctx, level(code), "request refused", "request", id, "op", OpUnparsed, "code", code, "err", "not parsed: "+said, "suppressed", suppressed)
	}
	b, err := strictjson.Marshal(code.Body(id))
	if err != nil {
		return nil // a fixed shape
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		code.Status(), http.StatusText(code.Status()), len(b), b)
}
