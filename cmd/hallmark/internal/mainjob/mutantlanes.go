// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/matrix"
	"github.com/hallmark-sandbox/hallmark/conformance"
)

// schedule is how the rows of a matrix are run: the unpatched worker's first and by itself, then many
// side by side, at last one by one those with a case that wants the machine for itself. Rows of
// several processes each leave no room for another.
type schedule struct {
	lanes       int // rows at a time
	side, alone []matrix.Line
}

func (j *job) schedule(in matrixInputs, lines []matrix.Line, o matrixOptions) schedule {
	s := schedule{lanes: max(1, o.procs)}
	for _, l := range lines {
		if l.ID == matrix.Base {
			continue
		}
		ids := in.rowCases(l, o)
		if rowProcs(len(ids), o.procs) > 1 {
			s.lanes = 1
		}
		if slices.ContainsFunc(j.suite.Cases, func(c conformance.Case) bool { return c.Exclusive && slices.Contains(ids, c.ID) }) {
			s.alone = append(s.alone, l)
		} else {
			s.side = append(s.side, l)
		}
	}
	return s
}

// lines are all in the order in which they begin.
func (s schedule) lines() []matrix.Line { return slices.Concat(s.side, s.alone) }

// run calls take for each line in the order of [schedule.lines], one at a time, and do with what it
// returned, as many at a time as there are lanes. The first error ends what runs.
func (s schedule) run(ctx context.Context, take func(matrix.Line) (string, error), do func(context.Context, matrix.Line, string) error) error {
	for _, part := range []struct {
		lanes int
		lines []matrix.Line
	}{{s.lanes, s.side}, {1, s.alone}} {
		var mu sync.Mutex
		left := part.lines
		next := func() (l matrix.Line, dir string, ok bool, err error) {
			mu.Lock()
			defer mu.Unlock()
			if len(left) == 0 {
				return l, "", false, nil
			}
			l, left = left[0], left[1:]
			dir, err = take(l)
			return l, dir, err == nil, err
		}
		group, running := errgroup.WithContext(ctx)
		for range part.lanes {
			group.Go(func() error {
				for running.Err() == nil {
					l, dir, ok, err := next()
					if !ok {
						return err
					}
					if err := do(running, l, dir); err != nil {
						return err
					}
				}
				return nil // whoever ended it says why
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
