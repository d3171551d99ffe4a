// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/matrix"
)

// ids are those of lines.
func ids(lines []matrix.Line) (out []string) {
	for _, l := range lines {
		out = append(out, l.ID)
	}
	return out
}

func TestScheduleKeepsExclusiveCasesAlone(t *testing.T) {
	j, in := small(t)
	j.suite.Cases[1].Exclusive = true // caught is m02 by it
	pairs := matrixOptions{scope: matrix.Pairs, procs: 2}
	s := j.schedule(in, in.plan.Lines, pairs)
	if s.lanes != 2 || strings.Join(ids(s.side), " ") != "m01 runc" || strings.Join(ids(s.alone), " ") != "m02" {
		t.Errorf("%d lanes, side by side %q, alone %q", s.lanes, ids(s.side), ids(s.alone))
	}
	// Every row of the whole matrix has every case.
	s = j.schedule(in, in.plan.Lines, matrixOptions{scope: matrix.Whole, procs: 2})
	if len(s.side) != 0 || len(s.alone) != 3 {
		t.Errorf("side by side %q, alone %q", ids(s.side), ids(s.alone))
	}
	if s = j.schedule(in, in.plan.Lines, matrixOptions{scope: matrix.Pairs, procs: 1}); s.lanes != 1 {
		t.Errorf("%d lanes with one process", s.lanes)
	}
}

// Rows begin in order, as many as there are lanes are under way at a time, and those that stay alone
// meet nobody.
func TestScheduleRuns(t *testing.T) {
	line := func(id string) matrix.Line { var l matrix.Line; l.ID = id; return l }
	s := schedule{lanes: 2, side: []matrix.Line{line("a"), line("b"), line("c")}, alone: []matrix.Line{line("d"), line("e")}}
	var mu sync.Mutex
	var taken []string
	underWay, most := 0, map[string]int{}
	met := make(chan struct{}) // a and b are under way together
	take := func(l matrix.Line) (string, error) { taken = append(taken, l.ID); return "dir-" + l.ID, nil }
	do := func(_ context.Context, l matrix.Line, dir string) error {
		if dir != "dir-"+l.ID {
			t.Errorf("%s has the programs %s", l.ID, dir)
		}
		mu.Lock()
		underWay++
		most[l.ID] = underWay
		if underWay == 2 && l.ID != "c" {
			close(met)
		}
		mu.Unlock()
		if l.ID == "a" || l.ID == "b" {
			<-met
		}
		mu.Lock()
		underWay--
		mu.Unlock()
		return nil
	}
	if err := s.run(t.Context(), take, do); err != nil {
		t.Fatal(err)
	}
	if strings.Join(taken, " ") != "a b c d e" || most["d"] != 1 || most["e"] != 1 {
		t.Errorf("taken %q, under way at most %v", taken, most)
	}
}

func TestScheduleEndsWithTheFirstError(t *testing.T) {
	line := func(id string) matrix.Line { var l matrix.Line; l.ID = id; return l }
	s := schedule{lanes: 2, side: []matrix.Line{line("a"), line("b"), line("c"), line("d")}, alone: []matrix.Line{line("e")}}
	fault := errors.New("no engine")
	for name, tt := range map[string]struct {
		take func(matrix.Line) (string, error)
		do   func(context.Context, matrix.Line, string) error
	}{
		"taken": {func(l matrix.Line) (string, error) {
			if l.ID == "b" {
				return "", fault
			}
			return "", nil
		}, func(ctx context.Context, l matrix.Line, _ string) error { <-ctx.Done(); return ctx.Err() }},
		"run": {func(l matrix.Line) (string, error) { return "", nil }, func(ctx context.Context, l matrix.Line, _ string) error {
			if l.ID == "b" {
				return fault
			}
			<-ctx.Done()
			return ctx.Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var began []string
			err := s.run(t.Context(), tt.take, func(ctx context.Context, l matrix.Line, dir string) error {
				mu.Lock()
				began = append(began, l.ID)
				mu.Unlock()
				return tt.do(ctx, l, dir)
			})
			if !errors.Is(err, fault) || slices.Contains(began, "e") || slices.Contains(began, "d") {
				t.Errorf("%v after %q", err, began)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.run(ctx, func(matrix.Line) (string, error) { return "", nil }, func(context.Context, matrix.Line, string) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted schedule came to %v", err)
	}
}

// Rows and builds are in one order, or none runs on: a row on the programs of another mutant would prove nothing.
func TestBuildOfAnotherMutantIsNotHandedOut(t *testing.T) {
	b := &builds{ctx: t.Context(), queue: make(chan builtMutant, 2)}
	b.queue <- builtMutant{id: "m01", dir: "one"}
	b.queue <- builtMutant{id: "m03", dir: "three"}
	if dir, err := b.next("m01"); dir != "one" || err != nil {
		t.Errorf("got %q, %v", dir, err)
	}
	dir, err := b.next("m02")
	if dir != "" || err == nil || !strings.Contains(err.Error()+fmt.Sprint(errors.Unwrap(err)), "m03") {
		t.Errorf("got %q, %v", dir, err)
	}
}
