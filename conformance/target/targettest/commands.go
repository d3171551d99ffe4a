// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"bytes"
	"context"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func commands() []Check {
	return []Check{
		{"argv", "A command's arguments reach the program as they are: there is no shell, nothing is split, expanded or dropped.", checkArgv},
		{"user", "A command runs as user 65532.", checkUser},
		{"exit-code", "The exit code is the program's.", checkExitCode},
		{"signal", "A program that a signal ended is told from one that exited: -1 and the signal's name, or 128 plus its number where the engine tells no more.", checkSignal},
		{"stdin", "Standard input reaches the program byte by byte and ends; without input it ends at once.", checkStdin},
		{"cwd", "A command starts in the workspace, or in Cwd below it.", checkCwd},
		{"timeout", "A command that outlives its time-out is ended, the result says so, and the next command runs.", checkTimeout},
		{"output-bound", "At most MaxOutput bytes over both streams come back; what was dropped is counted exactly and flagged by stream.", checkOutputBound},
		{"output-exact", "Output up to the bound comes back whole and is not flagged.", checkOutputExact},
		{"cancel", "Exec returns soon after its context has ended, and the sandbox is usable or gone.", checkCancel},
		{"concurrent", "Operations of one sandbox run side by side.", checkConcurrent},
	}
}

func checkArgv(ctx context.Context, s *subject) error {
	args := []string{"plain", "two words", "", "$HOME", "`id`", "a;b|c&d", "*", `"quoted" 'too'`, `back\slash`, "line\nbreak", "ünïcode…", "-x", "--"}
	r, err := s.ask(ctx, target.Command{Argv: argv(append([]string{"--"}, args...)...)})
	if err != nil {
		return err
	}
	var f faults
	if n := r.Counts["args"]; n != int64(len(args)) {
		f.add("%d arguments arrived of %d", n, len(args))
	}
	for i, arg := range args {
		if got := r.Facts["arg"+strconv.Itoa(i)]; got != hex.EncodeToString([]byte(arg)) {
			b, _ := hex.DecodeString(got)
			f.add("argument %d is %q, sent %q", i, b, arg)
		}
	}
	return f.join()
}

// tenantUser is who runs commands, in every target.
const tenantUser = 65532

func checkUser(ctx context.Context, s *subject) error {
	r, err := s.ask(ctx, target.Command{Argv: argv()})
	if err != nil {
		return err
	}
	var f faults
	if uid := r.Counts["uid"]; uid != tenantUser {
		f.add("the command runs as user %d", uid)
	}
	return f.join()
}

func checkExitCode(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	var f faults
	for _, code := range []int{0, 1, 7, 126, 255} {
		res, err := sb.Exec(ctx, target.Command{Argv: argv("-exit", strconv.Itoa(code))})
		if err != nil || res.ExitCode != code || res.Signal != "" || res.TimedOut {
			f.add("exit status %d comes back as %s, %v", code, describe(res), err)
		}
	}
	return f.join()
}

func checkSignal(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	var f faults
	for _, signal := range []int{9, 15} {
		res, err := sb.Exec(ctx, target.Command{Argv: argv("-signal", strconv.Itoa(signal))})
		told := res.ExitCode == -1 && res.Signal != "" || res.ExitCode == 128+signal && res.Signal == ""
		if err != nil || !told || res.TimedOut {
			f.add("an end by signal %d comes back as %s, %v", signal, describe(res), err)
		}
	}
	return f.join()
}

func checkStdin(ctx context.Context, s *subject) error {
	var f faults
	body := bytes.Repeat([]byte{0, 1, 0xff, '\n', '\r', 0x1b}, 20000) // more than a pipe holds
	for _, in := range [][]byte{nil, body} {
		r, err := s.ask(ctx, target.Command{Argv: argv("-stdin"), Stdin: in, Timeout: 20 * time.Second})
		if err != nil {
			f.add("%d bytes of input: %w", len(in), err)
			continue
		}
		if n := r.Counts["stdin"]; n != int64(len(in)) || r.Facts["stdin"] != hex.EncodeToString(in[:min(len(in), 64)]) {
			f.add("%d bytes of input arrive as %d, beginning with %s", len(in), n, r.Facts["stdin"])
		}
	}
	return f.join()
}

func checkCwd(ctx context.Context, s *subject) error {
	top, err := s.ask(ctx, target.Command{Argv: argv("-mkdir", "below")})
	if err != nil {
		return err
	}
	cmd := target.Command{Argv: argv(), Cwd: "below"}
	cmd.Argv[0] = "../" + program
	below, err := s.ask(ctx, cmd)
	if err != nil {
		return err
	}
	var f faults
	if want := strings.TrimSuffix(top.Facts["cwd"], "/") + "/below"; below.Facts["cwd"] != want {
		f.add("with Cwd %q the command starts in %q, without it in %q", "below", below.Facts["cwd"], top.Facts["cwd"])
	}
	return f.join()
}

// slack is what an end by the target may take beyond the bound: the suite's machine may be busy.
const slack = 20 * time.Second

func checkTimeout(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	var f faults
	start := time.Now()
	res, err := sb.Exec(ctx, target.Command{Argv: argv("-sleep", "60s"), Timeout: time.Second})
	took := time.Since(start)
	if err != nil {
		return err
	}
	if !res.TimedOut || res.ExitCode == 0 {
		f.add("a command with a time-out of 1s comes back after %s as %s", took.Round(time.Millisecond), describe(res))
	}
	if took < 900*time.Millisecond || took > time.Second+slack {
		f.add("a time-out of 1s ends the command after %s", took.Round(time.Millisecond))
	}
	if res, err := sb.Exec(ctx, target.Command{Argv: argv("-exit", "0")}); err != nil || res.ExitCode != 0 || res.TimedOut {
		f.add("the next command: %s, %v", describe(res), err)
	}
	return f.join()
}

// written is what the test program writes.
func written(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}

func checkOutputBound(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	var f faults
	const bound = 1000
	for _, tt := range []struct{ out, err int }{{5000, 0}, {0, 5000}, {bound + 1, 0}, {700, 700}, {3 << 20, 0}} {
		res, err := sb.Exec(ctx, target.Command{Argv: argv("-out", strconv.Itoa(tt.out), "-err", strconv.Itoa(tt.err)), MaxOutput: bound})
		what := "of " + strconv.Itoa(tt.out) + " and " + strconv.Itoa(tt.err) + " bytes with a bound of " + strconv.Itoa(bound) + ": "
		if err != nil || res.ExitCode != 0 {
			f.add("%s%s, %v", what, describe(res), err)
			continue
		}
		kept := len(res.Stdout) + len(res.Stderr)
		if kept > bound {
			f.add("%s%d bytes come back", what, kept)
		}
		if int64(tt.out+tt.err-kept) != res.DroppedBytes {
			f.add("%s%d come back and %d are said to be dropped", what, kept, res.DroppedBytes)
		}
		if res.TruncatedStdout != (len(res.Stdout) < tt.out) || res.TruncatedStderr != (len(res.Stderr) < tt.err) {
			f.add("%s%s, truncated stdout %v, stderr %v", what, describe(res), res.TruncatedStdout, res.TruncatedStderr)
		}
		if !bytes.HasPrefix(written(tt.out), res.Stdout) || !bytes.HasPrefix(written(tt.err), res.Stderr) {
			f.add("%swhat comes back is not the beginning of what was written", what)
		}
	}
	return f.join()
}

func checkOutputExact(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	var f faults
	for _, tt := range []struct {
		out, err int
		bound    int64
	}{{1000, 0, 1000}, {600, 400, 1000}, {200000, 100, 1 << 20}} {
		res, err := sb.Exec(ctx, target.Command{Argv: argv("-out", strconv.Itoa(tt.out), "-err", strconv.Itoa(tt.err)), MaxOutput: tt.bound})
		whole := bytes.Equal(res.Stdout, written(tt.out)) && bytes.Equal(res.Stderr, written(tt.err))
		if err != nil || !whole || res.DroppedBytes != 0 || res.TruncatedStdout || res.TruncatedStderr {
			f.add("%d and %d bytes with a bound of %d: %s, %v", tt.out, tt.err, tt.bound, describe(res), err)
		}
	}
	return f.join()
}

func checkCancel(ctx context.Context, s *subject) error {
	sb, err := s.create(ctx, target.Spec{})
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	start := time.Now()
	_, err = sb.Exec(short, target.Command{Argv: argv("-sleep", "15s"), Timeout: 20 * time.Second})
	took := time.Since(start)
	var f faults
	if err == nil {
		f.add("exec succeeds though its context has ended")
	}
	if took > 10*time.Second {
		f.add("exec returns %s after its context has ended", (took - time.Second).Round(time.Millisecond))
	}
	res, err := sb.Exec(ctx, target.Command{Argv: argv("-exit", "0")})
	if err != nil && target.CodeOf(err) == "" || err == nil && res.ExitCode != 0 {
		f.add("the next command: %s, %v", describe(res), err)
	}
	return f.join()
}

func checkConcurrent(ctx context.Context, s *subject) error {
	if !s.has("runtime.concurrent") {
		return notOffered("the target handles one request at a time")
	}
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	// Two commands wait for each other, a third one for the files API: one at a time, none ever ends.
	type outcome struct {
		res target.Result
		err error
	}
	var ends [3]chan outcome
	for i, args := range [][]string{{"-touch", "a", "-wait", "b", "-exit", "0"}, {"-touch", "b", "-wait", "a", "-exit", "0"}, {"-touch", "c", "-wait", "d", "-exit", "0"}} {
		ends[i] = make(chan outcome, 1)
		go func() {
			res, err := sb.Exec(ctx, target.Command{Argv: argv(args...), Timeout: 40 * time.Second})
			ends[i] <- outcome{res, err}
		}()
	}
	for end := time.Now().Add(slack); ; time.Sleep(20 * time.Millisecond) {
		_, err := sb.Files().Stat(ctx, "c")
		if err == nil || time.Now().After(end) {
			break
		}
	}
	var f faults
	if err := sb.Files().Write(ctx, "d", nil); err != nil {
		f.add("a write while commands run: %w", err)
	}
	for i, c := range ends {
		if o := <-c; o.err != nil || o.res.ExitCode != 0 {
			f.add("command %d of three that wait for others: %s, %v", i+1, describe(o.res), o.err)
		}
	}
	return f.join()
}
