// SPDX-License-Identifier: Apache-2.0

// Package exitcode carries the errors of the quota backends over the border between
// hallmark-quota and its caller: one sentinel, one exit code. It owns the table and nothing
// else. Read reference/quota/loopimage and reference/quota/project next.
package exitcode

import (
	"errors"
	"fmt"
)

// Sentinels, matched with errors.Is. Each has an exit code of hallmark-quota.
var (
	ErrUsage        = errors.New("wrong arguments")
	ErrReserve      = errors.New("the host reserve does not allow this workspace")
	ErrBusy         = errors.New("the workspace is in use")
	ErrNotFound     = errors.New("no such workspace")
	ErrMissingMount = errors.New("the workspace is not mounted as expected")
	ErrSpec         = errors.New("the requested bounds are not possible")
	ErrMismatch     = errors.New("the workspace has other bounds")
	ErrCorrupt      = errors.New("the workspace is damaged")
	ErrTool         = errors.New("a tool or kernel facility is missing")

	// Of project quota alone.
	ErrNotEnforced = errors.New("the filesystem does not enforce project quota")
	ErrChanged     = errors.New("the workspace changed meanwhile")
	ErrOutsideLink = errors.New("a file has a name outside of the workspace")
	ErrForeign     = errors.New("the workspace holds a mount point, a device or a file that cannot be changed")
	ErrExhausted   = errors.New("no project id is free")
	ErrTooLarge    = errors.New("the workspace holds more than it may")
)

// Internal is the exit code of an error without a sentinel.
const Internal = 1

// Codes 3 to 9 are left to the shell and to the Go runtime (2 is shared with a panic, which
// prints no answer and no sentence of this program).
var exits = []struct {
	err  error
	code int
}{
	{ErrUsage, 2}, {ErrReserve, 10}, {ErrBusy, 11}, {ErrNotFound, 12}, {ErrMissingMount, 13},
	{ErrSpec, 14}, {ErrMismatch, 15}, {ErrCorrupt, 16}, {ErrTool, 17},
	{ErrNotEnforced, 18}, {ErrChanged, 19}, {ErrOutsideLink, 20}, {ErrForeign, 21}, {ErrExhausted, 22}, {ErrTooLarge, 23},
}

// Of returns the exit code of err; 0 for nil.
func Of(err error) int {
	if err == nil {
		return 0
	}
	for _, e := range exits {
		if errors.Is(err, e.err) {
			return e.code
		}
	}
	return Internal
}

// Error returns an error that matches the sentinel of a non-zero exit code.
func Error(code int, message string) error {
	for _, e := range exits {
		if e.code == code {
			return &remoteError{message, e.err}
		}
	}
	return fmt.Errorf("exit code %d: %s", code, message)
}

// remoteError keeps the helper's sentence, which names the sentinel already.
type remoteError struct {
	message string
	kind    error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }
