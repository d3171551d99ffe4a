// SPDX-License-Identifier: Apache-2.0

// Command fuzz runs every fuzz target of the module, one on each processor. It finds them itself: a
// target that is written runs from then on. It fails on any finding, on a target that did not run,
// and when there is none at all.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	d := flag.Duration("time", 30*time.Second, "how long each target runs")
	only := flag.String("run", "", "only targets whose package and name match this regular expression")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := fuzz(ctx, ".", *d, *only); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(1)
	}
}

// target is one fuzz function.
type target struct{ dir, name string }

func (t target) String() string { return t.dir + " " + t.name }

func fuzz(ctx context.Context, root string, d time.Duration, only string) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all, err := find(root)
	if err != nil {
		return err
	}
	inputs, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env GOCACHE: %w", err)
	}
	cache := filepath.Join(strings.TrimSpace(string(inputs)), "fuzz") // where the go command keeps inputs, by package
	var group errgroup.Group                                          // not its context: a finding stops no other target
	group.SetLimit(runtime.NumCPU())
	var mu sync.Mutex // of what follows, and of standard output
	var failed []error
	ran := 0
	for _, t := range all {
		if !match.MatchString(t.String()) {
			continue
		}
		ran++
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			out, err := run(ctx, root, t, cache, d)
			mu.Lock()
			defer mu.Unlock()
			fmt.Printf("== %s\n%s", t, out)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", t, err))
			}
			return nil
		})
	}
	_ = group.Wait() // every error is in failed
	if ran == 0 {
		return errors.New("no fuzz target was found")
	}
	fmt.Printf("== %d targets, %d failed\n", ran, len(failed))
	return errors.Join(append(failed, ctx.Err())...)
}

// find parses the test files, which is quicker than building all tests in order to ask them. Nested
// modules and folders that the go command skips are left out.
func find(root string) ([]target, error) {
	var found []target
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			name := e.Name()
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (nested == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && isTarget(fn) {
				dir, err := filepath.Rel(root, filepath.Dir(path))
				if err != nil {
					return err
				}
				found = append(found, target{"./" + filepath.ToSlash(dir), fn.Name.Name})
			}
		}
		return nil
	})
	return found, err
}

// isTarget says whether fn is what the go command takes for a fuzz test.
func isTarget(fn *ast.FuncDecl) bool {
	if fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") || len(fn.Type.Params.List) != 1 {
		return false
	}
	star, ok := fn.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "F"
}

// run fuzzes one target for d and returns what its test binary said. That succeeds also when it had
// nothing to fuzz, so its output must say that inputs were executed.
//
// The time is ended by an interrupt, not by -fuzztime: before Go 1.27 the deadline of that flag could
// fail a target that found nothing, with "context deadline exceeded" (https://go.dev/issue/75804).
// Nothing is made smaller: of inputs that take a second each that took all of the time, and longer.
func run(ctx context.Context, root string, t target, cache string, d time.Duration) ([]byte, error) {
	bin, path, out, err := compile(ctx, root, t)
	if err != nil {
		return out, err
	}
	defer os.RemoveAll(filepath.Dir(bin))
	running, end := context.WithCancel(ctx)
	defer end()
	cmd := exec.CommandContext(running, bin, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzzcachedir="+filepath.Join(cache, path), "-test.parallel=1",
		"-test.fuzzminimizetime=0", "-test.paniconexit0")
	cmd.Dir = filepath.Join(root, t.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	clock := &clock{d: d, end: end}
	cmd.Stdout, cmd.Stderr = clock, clock
	if err = cmd.Run(); errors.Is(err, context.Canceled) {
		err = ctx.Err() // the interrupt was ours, and nothing was found until then
	}
	switch {
	case err != nil:
	case !executed.Match(clock.said):
		err = errors.New("nothing was executed")
	case clock.late():
		err = errors.New("an input did not end")
	}
	return clock.said, err
}

// compile builds the instrumented test binary of a target's package in a folder of its own, and names
// the package. What it returns besides is output.
func compile(ctx context.Context, root string, t target) (bin, path string, out []byte, err error) {
	list := exec.CommandContext(ctx, "go", "list", "-e", "-f", "{{.ImportPath}}", t.dir) // what is wrong with it, the build says
	list.Dir = root
	name, err := list.Output()
	if err != nil {
		return "", "", nil, fmt.Errorf("go list: %w", err)
	}
	dir, err := os.MkdirTemp("", "fuzz-")
	if err != nil {
		return "", "", nil, err
	}
	bin = filepath.Join(dir, "fuzz.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-fuzz=^"+t.name+"$", "-o", bin, t.dir)
	build.Dir = root
	if out, err = build.CombinedOutput(); err == nil {
		_, err = os.Stat(bin) // a package without test files builds nothing and succeeds
	}
	if err != nil {
		return "", "", out, errors.Join(fmt.Errorf("go test -c: %w", err), os.RemoveAll(dir))
	}
	return bin, strings.TrimSpace(string(name)), out, nil
}

// clock keeps what a test binary says and ends its time d after it began to fuzz: an interrupt that
// comes before would kill it.
type clock struct {
	d     time.Duration
	end   func()
	said  []byte
	began time.Time // zero: not yet
}

// Write is called by one goroutine, as one writer is both standard output and standard error.
func (c *clock) Write(p []byte) (int, error) {
	c.said = append(c.said, p...)
	if c.began.IsZero() && bytes.Contains(c.said, []byte("fuzz: elapsed: ")) {
		c.began = time.Now()
		time.AfterFunc(c.d, c.end)
	}
	return len(p), nil
}

// late says whether the binary had to kill its fuzzing process, which it does without a word and
// calls a success: it asks it to end, asks again after a second (internal/fuzz, worker.stop), and
// kills it after another one.
func (c *clock) late() bool { return time.Since(c.began) > c.d+1900*time.Millisecond }

var executed = regexp.MustCompile(`fuzz: elapsed: .* execs: [1-9]`)
