// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// baseline is what was there before a run opened its target, so that what the run as a whole leaves
// is found when the target is closed. Unlike the inventories of single cases it knows no scopes:
// when it is held against what is left, nobody else of the run is there to account for anything.
type baseline struct {
	plan   plan
	own    *footprint
	shared bool      // the process is not the suite's own
	begun  time.Time // the run, before any of its processes
	socket string    // of the engine, "" without
	parent string    // of cgroups, with those of all processes
	things inventory
	settle time.Duration
}

// takeBaseline is called before the target is opened.
func takeBaseline(p plan, shared bool) (*baseline, error) {
	st, err := os.Stat(filepath.Join(p.Raw, planFile)) // written before the first process starts
	if err != nil {
		return nil, fmt.Errorf("first inventory: %w", err)
	}
	l := &baseline{plan: p, own: takeFootprint(), shared: shared, begun: st.ModTime(), things: inventory{}, settle: scaled(p.TimeScale, settleTime)}
	if err := l.things.host(p.Work, 0, shared); err != nil {
		return nil, fmt.Errorf("first inventory: %w", err)
	}
	return l, nil
}

// note adds what the engine held, once the open target says which engine that is. What the run has
// made by then is left out: containers by their time, cgroups by their container.
func (l *baseline) note(ctx context.Context, tg *target.Target) error {
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
		if err := engineGet(ctx, socket, "/containers/"+t.id+"/json", &seen); err != nil || seen.Created.After(l.begun) {
			delete(l.things, key)
			late = append(late, t.id)
		}
	}
	maps.DeleteFunc(l.things, func(_ string, t thing) bool {
		for _, id := range late {
			if strings.Contains(t.cgroup, id) {
				return true
			}
		}
		return false
	})
	return nil
}

func (l *baseline) engine(ctx context.Context, into inventory) error {
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

// ownLeft says what the suite's process still holds after its target was closed, but for the files
// of the run's own records. Of a process that is shared with others it says nothing.
func (l *baseline) ownLeft() error {
	if l.shared {
		return nil
	}
	left := settledLeaks(l.settle, l.own, leakRule{records: l.plan.Raw})
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("the suite's process still holds %d things: %s", len(left), strings.Join(left[:min(len(left), 8)], "; "))
}

// hostLeft says what the run left on the host and in the engine. It is called in one process, when
// every other has closed its target; scopes are those of all, and beside those of other runs.
func (l *baseline) hostLeft(scopes []scope, beside func() []scope) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime+10*time.Second)
	defer cancel()
	before := maps.Clone(l.things)
	for _, s := range scopes {
		if s.CgroupParent != l.parent { // it is the run's own, and nothing in there was there before
			maps.DeleteFunc(before, func(_ string, t thing) bool { return s.holds(t.cgroup) })
		}
	}
	left, err := settle(l.settle, func() ([]string, error) {
		now := inventory{}
		if err := now.host(l.plan.Work, 0, l.shared); err != nil {
			return nil, err
		}
		if err := l.engine(ctx, now); err != nil {
			return nil, err
		}
		return now.since(before, inScopes(ctx, beside(), l.socket)), nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("last inventory: %w", err)
	case len(left) > 0:
		return fmt.Errorf("%d things are left that were not there before the run: %s", len(left), strings.Join(left[:min(len(left), 8)], "; "))
	}
	return nil
}
