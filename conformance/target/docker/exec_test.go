// SPDX-License-Identifier: Apache-2.0

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
)

func TestExec(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		tg := b.open()
		sb := b.sandbox(tg, target.Spec{})
		b.sh(sb, "mkdir sub")
		res, err := sb.Exec(b.Context(), target.Command{
			Argv: []string{"/bin/sh", "-c", "cat; pwd; id -u; id -g; echo err >&2; exit 7"}, Cwd: "sub", Stdin: []byte("fed\n"),
		})
		if err != nil || string(res.Stdout) != "fed\n/workspace/sub\n65532\n65532\n" || string(res.Stderr) != "err\n" || res.ExitCode != 7 || res.TimedOut || res.DroppedBytes != 0 {
			t.Errorf("%+v, %v", res, err)
		}

		// What is dropped is counted to the byte, over both streams.
		res, err = sb.Exec(b.Context(), target.Command{Argv: []string{"/bin/sh", "-c", "head -c 3000000 /dev/zero; head -c 500 /dev/zero >&2"}, MaxOutput: 1000})
		if kept := int64(len(res.Stdout) + len(res.Stderr)); err != nil || kept != 1000 || res.DroppedBytes != 3000500-1000 || !res.TruncatedStdout {
			t.Errorf("kept %d, dropped %d, truncated %v %v, %v", kept, res.DroppedBytes, res.TruncatedStdout, res.TruncatedStderr, err)
		}

		// More stdin than any pipe holds, and more output than is read before it: no deadlock.
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		res, err = sb.Exec(b.Context(), target.Command{Argv: []string{"/bin/cat"}, Stdin: big, MaxOutput: 2 << 20})
		if err != nil || !bytes.Equal(res.Stdout, big) {
			t.Errorf("%d of %d bytes came back, %v", len(res.Stdout), len(big), err)
		}

		// A program that is not there is an answer, as `docker exec` gives one.
		res, err = sb.Exec(b.Context(), target.Command{Argv: []string{"./missing"}})
		if err != nil || res.ExitCode != 126 && res.ExitCode != 127 || !bytes.Contains(res.Stdout, []byte("exec failed")) {
			t.Errorf("a missing program: exit code %d, %v, %q", res.ExitCode, err, res.Stdout)
		}
		for _, cwd := range []string{"..", "/etc", "a/../..", "a\x00b"} {
			_, err := sb.Exec(b.Context(), target.Command{Argv: []string{"/bin/true"}, Cwd: cwd})
			b.want("cwd "+cwd, err, docker.CodePathUnsafe, target.KindPathUnsafe)
		}

		// Several at a time.
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				word := strings.Repeat("x", i+1)
				res, err := sb.Exec(b.Context(), target.Command{Argv: []string{"/bin/echo", word}})
				if err != nil || string(res.Stdout) != word+"\n" {
					t.Errorf("%q, %v", res.Stdout, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestAFloodCostsConstantMemory(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	sb := b.sandbox(b.open(), target.Spec{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const flood = 512 << 20
	res, err := sb.Exec(t.Context(), target.Command{Argv: []string{"/bin/head", "-c", "536870912", "/dev/zero"}, MaxOutput: 64 << 10})
	runtime.ReadMemStats(&after)
	if err != nil || res.DroppedBytes != flood-64<<10 || res.ExitCode != 0 {
		t.Fatalf("dropped %d, exit code %d, %v", res.DroppedBytes, res.ExitCode, err)
	}
	if grown := int64(after.Sys) - int64(before.Sys); grown > 32<<20 {
		t.Errorf("%d MiB of flood grew this process by %d bytes", flood>>20, grown)
	}
}

// At the time-out the exec's host process is killed and nothing else: what the package says of
// descendants, and of runsc, is what happens.
func TestTimeoutKillsTheHostProcessOnly(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		tg := b.open()
		sb := b.sandbox(tg, target.Spec{})
		c := b.container(tg, sb)
		script := "(while :; do echo . >>child; sleep 0.1; done) & while :; do echo . >>leader; sleep 0.1; done"
		start := time.Now()
		res, err := sb.Exec(b.Context(), target.Command{Argv: []string{"/bin/sh", "-c", script}, Timeout: time.Second})
		wall := time.Since(start)
		if err != nil || !res.TimedOut || res.CleanupProven || res.DescendantsKilled != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		if wall < time.Second || wall > 7*time.Second {
			t.Errorf("the answer took %s", wall)
		}
		for file, want := range map[string]bool{"child": true, "leader": b.config.Runtime != lab.RuntimeRunc} {
			s, err := oracle.WatchStill(b.Context(), filepath.Join(c.Workspace, file), 600*time.Millisecond, 800*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if s.Gone || s.Still == want {
				t.Errorf("%s lives on: %v, want %v", file, !s.Still, want)
			}
		}
		if got := b.sh(sb, "echo usable"); got != "usable" {
			t.Errorf("the next command says %q", got)
		}
	})
}

func TestACancelledExecAnswersWithTheCause(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	tg := b.open()
	sb := b.sandbox(tg, target.Spec{})
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("changed my mind")
	time.AfterFunc(500*time.Millisecond, func() { cancel(mine) })
	start := time.Now()
	res, err := sb.Exec(ctx, target.Command{Argv: []string{"/bin/sleep", "61"}})
	if !errors.Is(err, mine) || res.TimedOut || time.Since(start) > 6*time.Second {
		t.Errorf("%+v, %v after %s", res, err, time.Since(start))
	}
	if left := b.programs(b.container(tg, sb)); strings.Contains(left, "sleep 61") {
		t.Errorf("the command lives on:\n%s", left)
	}
}

// A neighbour's process that has the number of an exec's is never killed: the number is taken from the
// engine, held by a descriptor, and asked for once more. Here two execs time out beside a third.
func TestTimeoutsLeaveOtherCommandsAlone(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	sb := b.sandbox(b.open(), target.Spec{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			res, err := sb.Exec(t.Context(), target.Command{Argv: []string{"/bin/sleep", "60"}, Timeout: 500 * time.Millisecond})
			if err != nil || !res.TimedOut {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	wg.Go(func() {
		res, err := sb.Exec(t.Context(), target.Command{Argv: []string{"/bin/sh", "-c", "sleep 2; echo done"}})
		if err != nil || string(res.Stdout) != "done\n" || res.TimedOut {
			t.Errorf("%+v, %v", res, err)
		}
	})
	wg.Wait()
}

func TestDescriptorsDoNotGrow(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	sb := b.sandbox(b.open(), target.Spec{})
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	b.sh(sb, "true")
	before := count()
	for range 20 {
		b.sh(sb, "true")
		if err := sb.Files().Write(t.Context(), "f", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Files().Read(t.Context(), "f"); err != nil {
			t.Fatal(err)
		}
	}
	if grown := count() - before; grown > 4 { // kept connections
		t.Errorf("%d descriptors more after 20 commands", grown)
	}
}

// The kernel kills the sentry, and with it a command whose stream the engine then forgets: it is named
// at once, not at the command's time-out.
func TestASandboxThatIsKilledForMemoryIsNamed(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	tg := b.open()
	sb := b.sandbox(tg, target.Spec{MemoryBytes: 160 << 20})
	program, err := tenant()
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Files().Write(t.Context(), "tenant", body); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	res, err := sb.Exec(t.Context(), target.Command{
		Argv: []string{"./tenant", "--allow-outside-sandbox", "memory-hog", "-bytes", "503316480", "-procs", "12"}, Timeout: 40 * time.Second,
	})
	if err == nil {
		t.Logf("the exec ended with %d %s: %.500s %.500s", res.ExitCode, res.Signal, res.Stdout, res.Stderr)
	}
	b.want("the exec", err, docker.CodeOOM, target.KindOOM)
	if wall := time.Since(start); wall > 20*time.Second {
		t.Errorf("it took %s", wall)
	}
	if _, err := tg.Observer.Container(t.Context(), sb.ID()); !errors.Is(err, target.ErrNoContainer) {
		t.Errorf("the dead container: %v", err)
	}
}
