// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// transcriptVariable makes the test binary the program of the transcript.
const transcriptVariable = "EXECDRIVER_TRANSCRIPT"

func TestMain(m *testing.M) {
	if path := os.Getenv(transcriptVariable); path != "" {
		if err := perform(path, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(4)
		}
		os.Exit(0)
	}
	if state := os.Getenv(orphanVariable); state != "" {
		orphan(state)
	}
	os.Exit(m.Run())
}

// transcript returns the lines of the document.
func transcript(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(b), "```transcript\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		return nil, errors.New("the document has no transcript")
	}
	return strings.Split(strings.TrimSpace(text), "\n"), nil
}

// perform plays the program's part and demands the suite's, byte by byte.
func perform(path string, in io.Reader, out io.Writer) error {
	lines, err := transcript(path)
	if err != nil {
		return err
	}
	requests := bufio.NewScanner(in)
	requests.Buffer(nil, 1<<20)
	for i, line := range lines {
		mark, text, _ := strings.Cut(line, " ")
		switch mark {
		case ">":
			if !requests.Scan() {
				return fmt.Errorf("line %d: the suite says nothing more, expected %s", i+1, text)
			}
			if requests.Text() != text {
				return fmt.Errorf("line %d: the suite says\n%s\nexpected\n%s", i+1, requests.Text(), text)
			}
		case "<":
			fmt.Fprintln(out, text)
		default:
			return fmt.Errorf("line %d is neither: %s", i+1, line)
		}
	}
	if requests.Scan() {
		return fmt.Errorf("the suite says more: %s", requests.Text())
	}
	return nil
}

// The transcript of the document is what the driver says and understands.
func TestTranscript(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(Config{Command: []string{self}, Env: map[string]string{transcriptVariable: "../../../docs/exec-driver.md"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, dir := t.Context(), t.TempDir()
	tg, err := Open(ctx, config, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(tg.Parts, " "); got != "controller.foothold runtime.concurrent" {
		t.Errorf("parts are %q", got)
	}
	sb, err := tg.Runtime.Create(ctx, target.Spec{WorkspaceID: "ws-1", Image: "sha256:" + strings.Repeat("1", 64)})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Files().Write(ctx, "hello.sh", []byte("#!/bin/sh\necho hello\n")); err != nil {
		t.Fatal(err)
	}
	res, err := sb.Exec(ctx, target.Command{ID: "i1", Argv: []string{"./hello.sh"}})
	if err != nil || string(res.Stdout) != "hello\n" || res.ExitCode != 0 || !res.CleanupProven || res.Duration != 12*time.Millisecond {
		t.Errorf("exec: %+v, %v", res, err)
	}
	if e, err := sb.Files().Stat(ctx, "hello.sh"); err != nil || e != (target.Entry{Name: "hello.sh", Kind: "file", Size: 21}) {
		t.Errorf("stat: %+v, %v", e, err)
	}
	if _, err := sb.Files().Read(ctx, "../up"); target.KindOf(err) != target.KindPathUnsafe || target.CodeOf(err) != "EXAMPLE_PATH" || !strings.Contains(err.Error(), "stays in") {
		t.Errorf("read: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	_, err = sb.Exec(short, target.Command{ID: "i2", Argv: []string{"sleep", "60"}, Timeout: time.Minute})
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled exec: %v", err)
	}
	if state, err := sb.State(ctx); err != nil || state != "ready" {
		t.Errorf("state: %q, %v", state, err)
	}
	if res, err := tg.Controller.Foothold(ctx, sb.ID(), []string{"id"}, nil); err != nil || string(res.Stdout) != "uid=0\n" {
		t.Errorf("foothold: %+v, %v", res, err)
	}
	if err := sb.Files().Remove(ctx, "hello.sh"); err != nil {
		t.Error(err)
	}
	if err := sb.Dispose(ctx); err != nil {
		t.Error(err)
	}
	if state, err := sb.State(ctx); err != nil || state != "gone" {
		t.Errorf("state: %q, %v", state, err)
	}
	if err := tg.Runtime.Purge(ctx, "ws-1"); err != nil {
		t.Error(err)
	}
	docs, err := tg.Documents()
	if err != nil || !strings.Contains(string(docs["exec-describe.json"]), `"name":"example"`) {
		t.Errorf("documents: %s, %v", docs["exec-describe.json"], err)
	}
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%d things are left in the folder", len(left))
	}
}
