// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// lookWithin bounds how long an operation waits for the looks that follow it: those before it in the same
// sandbox, and its own, to which the supervisor has [control.LookWithin].
const lookWithin = 2 * control.LookWithin

// Look has the sandbox look paths of its workspace up, with the tenant's authority. A sentry keeps what it
// has once found open, so that a file whose name was taken away outside stays charged to the workspace; it
// lets go when the name is looked up inside and is another file's, or nobody's
// (gVisor, pkg/sentry/fsimpl/gofer, revalidation of cached dentries).
//
// It runs no command, takes at most [lookWithin], and whatever comes of it, the sandbox lives on: what ends
// with it is ended by who watches the bridge. The error is for the log.
func (m *Manager) Look(ctx context.Context, ws, sb string, paths ...[]byte) error {
	s, release, err := m.begin(ws, sb)
	if err != nil {
		return err
	}
	defer release()
	// Not with the caller, who may leave: what it asked for has happened.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
	defer cancel()
	return s.control.Look(ctx, paths...)
}
