// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// guide is followed literally by TestGuide.
const guide = "docs/validate.md"

// repositoryURL is what the guide clones; the test lets git find the working copy's repository there.
const repositoryURL = "https://github.com/hallmark-sandbox/hallmark"

// block is one fenced block of the guide.
type block struct {
	line   int
	kind   string // sh, output, or the language of a file
	file   string // file= of the info string
	exit   int    // exit= of the info string
	text   string
	output []string // lines that an sh block promises
}

// blocks reads the fences: ```sh [exit=N], ```output after it, ```LANGUAGE file=PATH. A block that
// is none of these, or promises of nothing, is an error: it would be shown and never tried.
func blocks(text string) ([]block, error) {
	var out []block
	var open *block
	for i, line := range strings.Split(text, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case open == nil && fence:
			words := strings.Fields(info)
			if len(words) == 0 {
				return nil, fmt.Errorf("line %d: a block without a language", i+1)
			}
			open = &block{line: i + 1, kind: words[0]}
			for _, w := range words[1:] {
				name, value, _ := strings.Cut(w, "=")
				var err error
				switch name {
				case "file":
					open.file = value
				case "exit":
					open.exit, err = strconv.Atoi(value)
				default:
					err = errors.New("unknown word")
				}
				if err != nil {
					return nil, fmt.Errorf("line %d: %s: %w", i+1, w, err)
				}
			}
		case open != nil && line == "```":
			switch {
			case open.kind == "output" && (len(out) == 0 || out[len(out)-1].kind != "sh" || out[len(out)-1].output != nil):
				return nil, fmt.Errorf("line %d: the output of nothing", open.line)
			case open.kind == "output":
				out[len(out)-1].output = strings.Split(strings.TrimSpace(open.text), "\n")
			case open.kind != "sh" && open.file == "":
				return nil, fmt.Errorf("line %d: a block of %s that is neither run nor written", open.line, open.kind)
			default:
				out = append(out, *open)
			}
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block does not end", open.line)
	}
	return out, nil
}

// missing returns the promised lines that are not in output; "…" stands for anything within a line.
func missing(promised []string, output string) []string {
	var out []string
	for _, want := range promised {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", ".*")
		pattern = regexp.MustCompile(`\s+`).ReplaceAllString(pattern, `[ \t]+`)
		if !regexp.MustCompile(pattern).MatchString(output) {
			out = append(out, want)
		}
	}
	return out
}

// TestGuide follows "Validate your runtime in an hour" from an empty folder, block by block. The
// clone has what is committed. Nothing but the module cache and the build cache is there to help.
func TestGuide(t *testing.T) {
	list, err := blocks(read(t, guide))
	if err != nil {
		t.Fatal(err)
	}
	repository, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Fatal(err)
	}
	top, err := os.MkdirTemp("", "hallmark-guide-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	if err := os.Chmod(top, 0o711); err != nil {
		t.Fatal(err)
	}
	env := []string{"GOPROXY=off", "CI=true", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url." + strings.TrimSpace(string(repository)) + ".insteadOf", "GIT_CONFIG_VALUE_0=" + repositoryURL}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HALLMARK_") {
			env = append(env, v)
		}
	}
	where := top // the folder in which the block before ended
	ran := 0
	for _, b := range list {
		if b.kind != "sh" {
			path := filepath.Join(where, b.file)
			if err := os.WriteFile(path, []byte(b.text), 0o644); err != nil {
				t.Fatalf("line %d: %v", b.line, err)
			}
			continue
		}
		start := time.Now()
		output, status, next, err := shell(t.Context(), where, env, b.text)
		if err != nil {
			t.Fatalf("line %d: %v\n%s", b.line, err, output)
		}
		if status != b.exit {
			t.Fatalf("line %d: exit status %d, promised %d:\n%s\n%s", b.line, status, b.exit, b.text, output)
		}
		if lacking := missing(b.output, output); len(lacking) > 0 {
			t.Fatalf("line %d: the output lacks\n%s\nit is\n%s", b.line, strings.Join(lacking, "\n"), output)
		}
		t.Logf("line %d: %s", b.line, time.Since(start).Round(time.Millisecond))
		where, ran = next, ran+1
	}
	if ran == 0 {
		t.Fatal("the guide runs nothing")
	}
}

// shell runs one block as a user would type it, and says where it ended.
func shell(ctx context.Context, dir string, env []string, text string) (output string, status int, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return "", 0, "", err
	}
	defer r.Close()
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-c", "trap 'pwd >&3' EXIT\n"+text)
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, env, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	w.Close()
	r.SetReadDeadline(time.Now().Add(5 * time.Second))
	place := make([]byte, 4096)
	n, rerr := r.Read(place)
	var exited *exec.ExitError
	if errors.As(err, &exited) && ctx.Err() == nil {
		status, err = exited.ExitCode(), nil
	}
	return string(out), status, strings.TrimSpace(string(place[:n])), errors.Join(err, rerr)
}

// The reader of the guide must be able to find faults.
func TestGuideReader(t *testing.T) {
	for _, tt := range []struct{ name, text, fault string }{
		{"shown and not tried", "```json\n{}\n```\n", "neither run nor written"},
		{"no language", "```\nx\n```\n", "without a language"},
		{"output of nothing", "```output\nx\n```\n", "output of nothing"},
		{"output of a file", "```json file=a\n{}\n```\n```output\nx\n```\n", "output of nothing"},
		{"no end", "```sh\nx\n", "does not end"},
		{"unknown word", "```sh retries=3\nx\n```\n", "unknown word"},
	} {
		if _, err := blocks(tt.text); err == nil || !strings.Contains(err.Error(), tt.fault) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	list, err := blocks("```sh exit=2\necho one\n```\n```output\none\nt…o\n```\n")
	if err != nil || len(list) != 1 || list[0].exit != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := missing(list[0].output, "xx one xx\ntwo\n"); len(got) > 0 {
		t.Errorf("missing %q", got)
	}
	if got := missing(list[0].output, "one\nt\no\n"); len(got) != 1 {
		t.Errorf("missing %q: a line is one line", got)
	}
	output, status, next, err := shell(t.Context(), t.TempDir(), os.Environ(), "cd /usr\necho here\nexit 3\n")
	if err != nil || status != 3 || next != "/usr" || output != "here\n" {
		t.Errorf("%q, %d, %q, %v", output, status, next, err)
	}
	if _, status, _, _ := shell(t.Context(), t.TempDir(), os.Environ(), "false\ntrue\n"); status != 1 {
		t.Errorf("a step that fails is passed over")
	}
}
