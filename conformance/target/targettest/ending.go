// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func ending() []Check {
	return []Check{
		{"dispose", "Dispose ends what runs, and repeating it succeeds; then the state is gone, and the observer finds no container.", checkDispose},
		{"disposed", "A disposed sandbox refuses every operation with a typed error.", checkDisposed},
		{"purge", "Purge removes a workspace's data; of a workspace that never was, it succeeds.", checkPurge},
		{"close", "After everything is disposed and purged, Close succeeds and leaves nothing.", checkClose},
	}
}

func checkDispose(ctx context.Context, s *subject) error {
	sb, err := s.create(ctx, target.Spec{})
	if err != nil {
		return err
	}
	var f faults
	if s.has("runtime.concurrent") {
		ended := make(chan error, 1)
		go func() {
			res, err := sb.Exec(ctx, target.Command{Argv: argv("-touch", "running", "-sleep", "60s"), Timeout: 90 * time.Second})
			if err == nil && res.ExitCode == 0 {
				err = errors.New("the command ended by itself")
			} else if err != nil && target.CodeOf(err) == "" {
				err = fmt.Errorf("the command's end has no code: %w", err)
			} else {
				err = nil
			}
			ended <- err
		}()
		for end := time.Now().Add(slack); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if _, err := sb.Files().Stat(ctx, "running"); err == nil {
				break
			}
		}
		defer func() { // whatever Dispose does, nothing of this check runs on
			select {
			case <-ended:
			case <-ctx.Done():
			}
		}()
		start := time.Now()
		if err := sb.Dispose(ctx); err != nil {
			return fmt.Errorf("dispose with a command under way: %w", err)
		}
		select {
		case err := <-ended:
			if err != nil {
				f.add("a command under way: %w", err)
			}
			ended <- nil
		case <-time.After(slack):
			f.add("a command runs on %s after dispose", time.Since(start).Round(time.Second))
		}
	}
	for range 2 {
		if err := sb.Dispose(ctx); err != nil {
			f.add("dispose: %w", err)
		}
	}
	if state, err := sb.State(ctx); err != nil || state != "gone" {
		f.add("the state of a disposed sandbox is %q, %v", state, err)
	}
	if s.tg.Observer != nil {
		if _, err := s.tg.Observer.Container(ctx, sb.ID()); !errors.Is(err, target.ErrNoContainer) && !errors.Is(err, target.ErrUnavailable) {
			f.add("the observer on a disposed sandbox: %v", err)
		}
	}
	return f.join()
}

func checkDisposed(ctx context.Context, s *subject) error {
	sb, err := s.create(ctx, target.Spec{})
	if err != nil {
		return err
	}
	if err := sb.Dispose(ctx); err != nil {
		return err
	}
	var f faults
	_, err = sb.Exec(ctx, target.Command{Argv: argv()})
	f.typed("exec in a disposed sandbox", err, target.KindGone)
	_, err = sb.Files().Read(ctx, program)
	f.typed("read in a disposed sandbox", err, target.KindGone)
	f.typed("write in a disposed sandbox", sb.Files().Write(ctx, "late", nil), target.KindGone)
	_, err = sb.Files().Stat(ctx, program)
	f.typed("stat in a disposed sandbox", err, target.KindGone)
	f.typed("remove in a disposed sandbox", sb.Files().Remove(ctx, program), target.KindGone)
	return f.join()
}

func checkPurge(ctx context.Context, s *subject) error {
	var f faults
	if err := s.tg.Runtime.Purge(ctx, "ws-never-"+rand.Text()); err != nil {
		f.add("purge of a workspace that never was: %w", err)
	}
	id := "ws-purged-" + rand.Text()
	for i := range 2 {
		sb, err := s.create(ctx, target.Spec{WorkspaceID: id})
		if err != nil {
			return err
		}
		if i == 0 {
			err = sb.Files().Write(ctx, "data", []byte("old"))
		} else if _, serr := sb.Files().Stat(ctx, "data"); serr == nil {
			f.add("a purged workspace still has its data")
		}
		if err == nil {
			err = sb.Dispose(ctx)
		}
		if err == nil {
			err = s.tg.Runtime.Purge(ctx, id)
		}
		if err != nil {
			return err
		}
	}
	return f.join()
}

// checkClose removes what the checks have made, closes, and looks for what is left.
func checkClose(ctx context.Context, s *subject) error {
	var f faults
	if s.has("observer.workspace-path") && s.tg.Observer != nil && s.shared != nil {
		if c, err := s.tg.Observer.Container(ctx, s.shared.ID()); err == nil {
			s.places = append(s.places, c.Workspace)
		}
	}
	for _, sb := range s.sandboxes {
		if err := sb.Dispose(ctx); err != nil {
			f.add("dispose %s: %w", sb.ID(), err)
		}
	}
	for _, ws := range s.workspaces {
		if err := s.tg.Runtime.Purge(ctx, ws); err != nil {
			f.add("purge %s: %w", ws, err)
		}
	}
	if s.tg.Close == nil {
		return f.join()
	}
	if err := s.tg.Close(); err != nil {
		f.add("close: %w", err)
	}
	for _, place := range s.places {
		if _, err := os.Lstat(place); !errors.Is(err, fs.ErrNotExist) {
			f.add("%s is still there", place)
		}
	}
	if s.o.Dir == "" {
		return f.join()
	}
	if mounts, err := target.MountsBelow(s.o.Dir); err != nil || len(mounts) > 0 {
		f.add("%d mounts below the driver's folder, %v", len(mounts), err)
	}
	if entries, err := os.ReadDir(s.o.Dir); err == nil && len(entries) > 0 {
		f.add("%d entries in the driver's folder, the first is %s", len(entries), entries[0].Name())
	}
	return f.join()
}
