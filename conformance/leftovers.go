// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// ledger is what was there before a run opened its target, so that what the run as a whole leaves is
// found when the target is closed. Unlike the inventories of single cases it knows no scopes: nobody
// else is there any more to account for anything.
type ledger struct {
	work   string // the run's folder, with those of all its processes
	own    *footprint
	shared bool // the process is not the suite's own
	opened time.Time
	socket string // of the engine, "" without
	parent string // of cgroups, with those of all processes
	things inventory
}

// openLedger is called before the target is opened.
func openLedger(work string, shared bool) (*ledger, error) {
	l := &ledger{work: work, own: takeFootprint(), shared: shared, opened: time.Now(), things: inventory{}}
	if err := l.things.host(work, 0, shared); err != nil {
		return nil, fmt.Errorf("first inventory: %w", err)
	}
	return l, nil
}

// note adds what the engine held, once the open target says which engine that is. What the opening
// itself made is left out by its time and scope.
func (l *ledger) note(ctx context.Context, tg *target.Target) error {
	if tg.Observer == nil {
		return nil
	}
	socket, err := tg.Observer.EngineSocket()
	if err != nil && !errors.Is(err, target.ErrUnavailable) {
		return fmt.Errorf("first inventory: %w", err)
	}
	own, err := tg.Observer.CgroupParent()
	if err != nil && !errors.Is(err, target.ErrUnavailable) {
		return fmt.Errorf("first inventory: %w", err)
	}
	l.socket, l.parent = socket, own
	// A parent of the target's own lies below that of everybody.
	if up := filepath.Dir(own); own != "" && up != "/" {
		l.parent = up
	}
	if err := l.engine(ctx, l.things); err != nil {
		return fmt.Errorf("first inventory: %w", err)
	}
	var late []string
	for key, t := range l.things {
		if t.id == "" {
			continue
		}
		var seen struct{ Created time.Time }
		if err := engineGet(ctx, socket, "/containers/"+t.id+"/json", &seen); err != nil || seen.Created.After(l.opened) {
			delete(l.things, key)
			late = append(late, t.id)
		}
	}
	for key, t := range l.things {
		if t.cgroup == "" {
			continue
		}
		if own != l.parent && below(t.cgroup, own) {
			delete(l.things, key)
		}
		for _, id := range late {
			if strings.Contains(t.cgroup, id) {
				delete(l.things, key)
			}
		}
	}
	return nil
}

func (l *ledger) engine(ctx context.Context, into inventory) error {
	if l.socket != "" {
		if err := into.containers(ctx, l.socket); err != nil {
			return err
		}
	}
	if l.parent == "" {
		return nil
	}
	return into.cgroups(cgroupRoot, l.parent)
}

// runLeftovers returns what the closed target and the suite left, as one error: mounts, loop devices
// and processes below the run's folder, containers of the engine, cgroups below its parent, and with
// them what this process still holds. host is false in all but one process of a run, and true in that
// one only when the others have closed theirs.
func (l *ledger) runLeftovers(host bool) error {
	var errs []error
	if !l.shared {
		if left := settledLeaks(l.own, false); len(left) > 0 {
			errs = append(errs, fmt.Errorf("the suite's process still holds %d things: %s", len(left), strings.Join(left[:min(len(left), 8)], "; ")))
		}
	}
	if !host {
		return errors.Join(errs...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime+10*time.Second)
	defer cancel()
	left, err := settle(func() ([]string, error) {
		now := inventory{}
		if err := now.host(l.work, 0, l.shared); err != nil {
			return nil, err
		}
		if err := l.engine(ctx, now); err != nil {
			return nil, err
		}
		return now.since(l.things, func(thing) bool { return false }), nil
	})
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("last inventory: %w", err))
	case len(left) > 0:
		errs = append(errs, fmt.Errorf("%d things are left that were not there before: %s", len(left), strings.Join(left[:min(len(left), 8)], "; ")))
	}
	return errors.Join(errs...)
}
