// SPDX-License-Identifier: Apache-2.0

// Command fuzz runs every fuzz target of the module, one on each processor. It finds them itself: a
// target that is written runs from then on. It fails on any finding, on a target that did not run,
// and when there is none at all.
package main

import (
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
	var group errgroup.Group // not its context: a finding stops no other target
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
			out, err := run(ctx, root, t, d)
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

// run fuzzes one target and returns what the go command said. That succeeds also when it had nothing
// to fuzz, so its output must say that inputs were executed.
func run(ctx context.Context, root string, t target, d time.Duration) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+d.String(), "-parallel=1", t.dir)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if err == nil && !executed.Match(out) {
		err = errors.New("nothing was executed")
	}
	return out, err
}

var executed = regexp.MustCompile(`fuzz: elapsed: .* execs: [1-9]`)
