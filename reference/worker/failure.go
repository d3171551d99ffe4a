// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"log/slog"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
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
		{workspace.ErrDigest, api.Unauthenticated}, // the body is not the one that was signed
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
