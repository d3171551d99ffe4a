// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// lookWithin bounds the command of one look, which takes some milliseconds. What it starts ends within
// [control.TerminateWithin] after that.
const lookWithin = 2 * time.Second

// Look has the sandbox look a path of its workspace up, with the tenant's authority. A sentry keeps what it
// has once found open, so that a file whose name was taken away outside stays charged to the workspace; it
// lets go when the name is looked up inside and is another file's, or nobody's
// (gVisor, pkg/sentry/fsimpl/gofer, revalidation of cached dentries). The path is made the working directory
// of a command, which cannot be entered unless somebody has made a folder of that name since.
func (m *Manager) Look(ctx context.Context, ws, sb string, path []byte) error {
	s, release, err := m.begin(ws, sb)
	if err != nil {
		return err
	}
	defer release()
	s.looking.Lock()
	defer s.looking.Unlock()
	// Not with the caller, who may leave: what it asked for has happened.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
	defer cancel()
	o, err := s.control.Stream(ctx, control.Spawn{
		ID: "look-" + rand.Text(), Argv: []string{engine.SupervisorTarget}, Cwd: string(path), Timeout: lookWithin, MaxOutput: 1,
	}, func(uint8, []byte) {})
	var spawn *control.SpawnError
	switch {
	case errors.As(err, &spawn) && spawn.Step == control.StepCwd:
		return nil // it was looked up
	case errors.Is(err, control.ErrBusy): // nothing was started
	case errors.Is(err, control.ErrLost):
		return m.lost(s, err)
	case unclean(o, err):
		m.retire(s, s.rec.Generation, reasonCleanup)
	}
	if err != nil {
		return fmt.Errorf("look up in the sandbox: %w", err)
	}
	return nil
}
