// SPDX-License-Identifier: Apache-2.0

// Package emit has a tenant copy a file of the host's to its outputs, step by step, and compares what
// comes back with what the host knows of file and steps. It owns the text of the steps and the
// arithmetic; it returns facts and never judges.
package emit

import (
	"bytes"
	"context"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Names in the workspace.
const (
	File     = "emit.content"
	Progress = "emit.progress"
)

// Step is a run of writes to stdout (1), stderr (2), or to both in turn (12). Byte n of an output is
// byte n of the endless repetition of the file.
type Step struct {
	FD     int
	From   int64
	Length int64
	Block  int64 // bytes of one write
}

// Settle waits until what was written has been taken out of the pipes.
var Settle = Step{}

func (s Step) text() string {
	if s == Settle {
		return "settle"
	}
	return fmt.Sprintf("%d:%d:%d:%d", s.FD, s.From, s.Length, s.Block)
}

func (s Step) to(fd int) bool { return s.FD == fd || s.FD == 12 }

// Script is a file's content and what is copied of it.
type Script struct {
	Content []byte
	Steps   []Step
}

// Place writes the content into the workspace, by the target's own file API.
func Place(ctx context.Context, sb target.Sandbox, content []byte) error {
	if err := sb.Files().Write(ctx, File, content); err != nil {
		return fmt.Errorf("write content: %w", err)
	}
	return nil
}

// Argv is the attack's command line.
func (s Script) Argv(program string, flags ...string) []string {
	argv := attack.Command(program, append([]string{"emit"}, flags...)...)
	for _, step := range s.Steps {
		argv = append(argv, step.text())
	}
	return argv
}

// Length is how many bytes are written to stdout (1) or stderr (2).
func (s Script) Length(fd int) (n int64) {
	for _, step := range s.Steps {
		if step.to(fd) {
			n += step.Length
		}
	}
	return n
}

// Total is what is written to both.
func (s Script) Total() int64 { return s.Length(1) + s.Length(2) }

// Prefix is the first n bytes that are written to fd, or all there are.
func (s Script) Prefix(fd int, n int64) []byte {
	out := make([]byte, 0, min(n, s.Length(fd)))
	for _, step := range s.Steps {
		if !step.to(fd) {
			continue
		}
		for done := int64(0); done < step.Length && int64(len(out)) < n; {
			at := (step.From + done) % int64(len(s.Content))
			part := s.Content[at:]
			part = part[:min(int64(len(part)), step.Length-done, n-int64(len(out)))]
			out = append(out, part...)
			done += int64(len(part))
		}
	}
	return out
}

// Fault is one difference, with the reason code that it stands for.
type Fault struct{ Reason, Text string }

// Differences says in what an outcome of the whole script differs from what a runtime owes that keeps
// the first budget bytes of both streams together, and counts the rest. Content comes first, then
// counts, then flags.
func (s Script) Differences(res target.Result, budget int64) []Fault {
	var out []Fault
	add := func(reason, format string, args ...any) {
		out = append(out, Fault{reason, fmt.Sprintf(format, args...)})
	}
	got := map[int][]byte{1: res.Stdout, 2: res.Stderr}
	names := map[int]string{1: "stdout", 2: "stderr"}
	kept := int64(len(res.Stdout) + len(res.Stderr))
	if kept > budget {
		add("output-above-budget", "%d bytes were returned, budget %d", kept, budget)
	}
	for fd := 1; fd <= 2; fd++ {
		want := s.Prefix(fd, int64(len(got[fd])))
		if at := firstDifference(got[fd], want); at >= 0 {
			add("bytes-differ", "%s differs from what was written at byte %d of %d: %s, not %s", names[fd], at, len(got[fd]), window(got[fd], at), window(want, at))
		}
	}
	if want := min(budget, s.Total()); kept < want {
		add("output-missing", "%d bytes were returned of %d that fit into the budget", kept, want)
	}
	if kept+res.DroppedBytes != s.Total() {
		add("bytes-unaccounted", "%d returned and %d dropped of %d written", kept, res.DroppedBytes, s.Total())
	}
	flags := map[int]bool{1: res.TruncatedStdout, 2: res.TruncatedStderr}
	for fd := 1; fd <= 2; fd++ {
		cut := int64(len(got[fd])) < s.Length(fd)
		switch {
		case cut && !flags[fd]:
			add("truncated-in-silence", "%d of %d bytes of %s were returned and nothing says so", len(got[fd]), s.Length(fd), names[fd])
		case !cut && flags[fd]:
			add("truncated-untrue", "all %d bytes of %s were returned and it is said to be cut", len(got[fd]), names[fd])
		}
	}
	return out
}

// firstDifference is -1 for equal ones.
func firstDifference(got, want []byte) int {
	if bytes.Equal(got, want) {
		return -1
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return i
		}
	}
	return min(len(got), len(want))
}

// window shows a few bytes at at, and names the end.
func window(b []byte, at int) string {
	if at >= len(b) {
		return "the end"
	}
	return fmt.Sprintf("% x", b[at:min(len(b), at+8)])
}
