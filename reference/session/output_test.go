// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// drain takes all that r gives and returns it by stream.
func drain(t *testing.T, r *Run) (stdout, stderr []byte) {
	t.Helper()
	for {
		isErr, b, err := r.Next(t.Context())
		switch {
		case errors.Is(err, io.EOF):
			return stdout, stderr
		case err != nil:
			t.Fatal(err)
		case len(b) == 0 || len(b) > maxChunk:
			t.Fatalf("a chunk of %d bytes", len(b))
		case isErr:
			stderr = append(stderr, b...)
		default:
			stdout = append(stdout, b...)
		}
	}
}

// TestStreamFollowsTheCommand: each chunk is taken before the command writes the next.
func TestStreamFollowsTheCommand(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		next := make(chan struct{})
		w.stream = func(_ context.Context, _ control.Spawn, sink control.Sink) (control.Outcome, error) {
			for _, part := range []string{"1a", "2\xff", "1bc"} {
				<-next
				buf := []byte(part[1:])
				sink(part[0]-'0', buf)
				clear(buf) // the bytes are the channel's
			}
			<-next
			return control.Outcome{CleanupProven: true}, nil
		}
		r, err := m.Start(t.Context(), "ws", sb, command("i"), "d")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := r.Next(soon); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a chunk out of nothing: %v", err)
		}
		for _, want := range []string{"1a", "2\xff", "1bc"} {
			next <- struct{}{}
			isErr, b, err := r.Next(t.Context())
			if err != nil || string(b) != want[1:] || isErr != (want[0] == '2') {
				t.Errorf("chunk %q (stderr %v), %v; want %q", b, isErr, err, want)
			}
			_, err = m.Exec(t.Context(), "ws", sb, command("i"), "d")
			wantCode(t, "repetition of a running one", err, api.ExecInProgress)
		}
		next <- struct{}{}
		if _, _, err := r.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
		out, err := r.Outcome()
		if err != nil || string(out.Stdout) != "abc" || string(out.Stderr) != "\xff" || !out.CleanupProven {
			t.Errorf("outcome %+v, %v", out, err)
		}
		// One request, two forms: each repeats the other.
		same, err := m.Exec(t.Context(), "ws", sb, command("i"), "d")
		if err != nil || string(same.Stdout) != "abc" || string(same.Stderr) != "\xff" {
			t.Errorf("buffered repetition %+v, %v", same, err)
		}
		again, err := m.Start(t.Context(), "ws", sb, command("i"), "d")
		if err != nil {
			t.Fatal(err)
		}
		if stdout, stderr := drain(t, again); string(stdout) != "abc" || string(stderr) != "\xff" {
			t.Errorf("streamed repetition %q, %q", stdout, stderr)
		}
		again.Close()
		again.Close()
		_, err = m.Start(t.Context(), "ws", sb, command("i"), "other")
		wantCode(t, "another request", err, api.IdempotencyConflict)
		if n := w.count("exec"); n != 1 {
			t.Errorf("%d commands ran", n)
		}
		wantIdle(t, m, sb)
	})
}

// TestStreamThatNobodyReads slows nothing, loses nothing, and costs one copy.
func TestStreamThatNobodyReads(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		var wantOut, wantErr []byte
		w.stream = func(_ context.Context, _ control.Spawn, sink control.Sink) (control.Outcome, error) {
			for i := range 64 {
				p := bytes.Repeat([]byte{byte(i)}, 65_535)
				sink(1, p)
				wantOut = append(wantOut, p...)
				sink(2, p[:100])
				wantErr = append(wantErr, p[:100]...)
			}
			return control.Outcome{CleanupProven: true}, nil
		}
		r, err := m.Start(t.Context(), "ws", sb, command("i"), "d")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		out, err := r.Outcome() // before a byte was taken
		if err != nil {
			t.Fatal(err)
		}
		wantIdle(t, m, sb)
		_, first, err := r.Next(t.Context())
		if err != nil || unsafe.SliceData(first) != unsafe.SliceData(out.Stdout) {
			t.Errorf("a chunk is a copy of the outcome (%v)", err)
		}
		isErr, second, err := r.Next(t.Context())
		if err != nil || !isErr {
			t.Errorf("stdout keeps stderr waiting (%v)", err)
		}
		stdout, stderr := drain(t, r)
		stdout, stderr = append(bytes.Clone(first), stdout...), append(bytes.Clone(second), stderr...)
		if !bytes.Equal(stdout, wantOut) || !bytes.Equal(stderr, wantErr) || !bytes.Equal(out.Stdout, wantOut) || !bytes.Equal(out.Stderr, wantErr) {
			t.Errorf("%d and %d bytes of %d and %d, or others", len(stdout), len(stderr), len(wantOut), len(wantErr))
		}
	})
}

// TestStreamBesideTheWriter has a reader and a writer at full speed, for the race detector.
func TestStreamBesideTheWriter(t *testing.T) {
	out := &output{}
	inv := &invocation{ended: make(chan struct{})}
	var want [2][]byte
	go func() {
		defer close(inv.ended)
		for i := range 20_000 {
			p := []byte{byte(i), byte(i >> 8), byte(i % 7)}
			out.take(uint8(1+i%2), p)
			want[i%2] = append(want[i%2], p...)
		}
	}()
	r := &Run{inv: inv, out: out, leave: func() {}}
	stdout, stderr := drain(t, r)
	if !bytes.Equal(stdout, want[0]) || !bytes.Equal(stderr, want[1]) {
		t.Errorf("%d and %d bytes of %d and %d, or others", len(stdout), len(stderr), len(want[0]), len(want[1]))
	}
}

// TestStreamsEndWithTheirCaller: closing the hold, or the end of its context, ends the command.
func TestStreamsEndWithTheirCaller(t *testing.T) {
	for _, how := range []string{"close", "context"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				w.stream = func(ctx context.Context, s control.Spawn, sink control.Sink) (control.Outcome, error) {
					sink(1, []byte("before"))
					return untilCancelled(ctx, s)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				r, err := m.Start(ctx, "ws", sb, command("i"), "d")
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if how == "close" {
					r.Close()
				} else {
					leave()
				}
				if stdout, _ := drain(t, r); string(stdout) != "before" {
					t.Errorf("what came before the end is %q", stdout)
				}
				_, err = r.Outcome()
				wantCode(t, "outcome", err, api.ExecAborted)
				again, err := m.Start(t.Context(), "ws", sb, command("i"), "d")
				if err != nil {
					t.Fatalf("a failed outcome is no outcome to a stream: %v", err)
				}
				defer again.Close()
				if stdout, stderr := drain(t, again); len(stdout)+len(stderr) > 0 {
					t.Errorf("a failed outcome has output: %q, %q", stdout, stderr)
				}
				_, err = again.Outcome()
				wantCode(t, "repetition", err, api.ExecAborted)
				wantIdle(t, m, sb)
			})
		})
	}
}

// TestStreamThatIsNotStarted: the claim holds, and what follows it is the outcome.
func TestStreamThatIsNotStarted(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{}, control.ErrBusy
		}
		r, err := m.Start(t.Context(), "ws", sb, command("i"), "d")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		_, err = r.Outcome()
		wantCode(t, "outcome", err, api.ExecConcurrencyExhausted)
		w.exec = nil
		if out, err := m.Exec(t.Context(), "ws", sb, command("i"), "d"); err != nil || string(out.Stdout) != "i" {
			t.Errorf("the second try gave %+v, %v", out, err)
		}
		wantIdle(t, m, sb)
	})
}

// TestRetirementEndsAStream: it gives what came, then the sandbox's code, and holds nothing up.
func TestRetirementEndsAStream(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		w.stream = func(ctx context.Context, s control.Spawn, sink control.Sink) (control.Outcome, error) {
			sink(2, []byte("before"))
			return untilCancelled(ctx, s)
		}
		r, err := m.Start(t.Context(), "ws", sb, command("i"), "d")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		synctest.Wait()
		if err := m.Dispose(t.Context(), "ws", sb); err != nil { // while nobody reads
			t.Fatal(err)
		}
		if stdout, stderr := drain(t, r); len(stdout) != 0 || string(stderr) != "before" {
			t.Errorf("the stream gave %q, %q", stdout, stderr)
		}
		_, err = r.Outcome()
		wantCode(t, "outcome", err, api.SandboxDisposed)
		wantIdle(t, m, sb)
	})
}

// What is kept of a command takes no more room than there is output, and little was taken on the way:
// the budget bounds what both streams can take together.
func TestOutputGrowsToItsBudget(t *testing.T) {
	const budget = 1 << 20
	for name, n := range map[string][2]int{"nothing": {}, "little": {5, 0}, "half": {budget / 2, 0}, "all": {budget, 0}, "both": {budget / 3, budget - budget/3}} {
		out := &output{budget: budget}
		taken := 0
		for stream, total := range n {
			for left := total; left > 0; {
				k := min(left, 1000)
				before := cap(out.data[stream])
				out.take(uint8(stream+1), bytes.Repeat([]byte{byte(stream)}, k))
				if after := cap(out.data[stream]); after != before {
					taken += after
				}
				left -= k
			}
		}
		most := budget * 4 / 3
		if n[1] > 0 { // each may yet take what the other leaves
			most = budget * 5 / 2
		}
		if taken > most {
			t.Errorf("%s: %d bytes were taken on the way to %v of %d", name, taken, n, budget)
		}
		a, b := out.all()
		if len(a) != n[0] || len(b) != n[1] || cap(a)+cap(b) > (n[0]+n[1])*9/8 || bytes.IndexByte(a, 1) >= 0 || bytes.IndexByte(b, 0) >= 0 {
			t.Errorf("%s: %d of %d and %d of %d bytes are kept", name, len(a), cap(a), len(b), cap(b))
		}
	}
}
