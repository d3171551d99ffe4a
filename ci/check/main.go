// SPDX-License-Identifier: Apache-2.0

// Command check runs the module's tests on a running lab: it starts one when none runs, and
// then takes it down and proves that nothing is left. Arguments go to `go test`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := check(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(1)
	}
}

func check(ctx context.Context, args []string) (err error) {
	l, err := lab.Up(ctx, lab.Options{Out: os.Stdout, Bound: true})
	if err != nil {
		return err
	}
	if l.Fresh {
		// Its own context: an interrupt must not cut the clean-up short.
		defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	}
	release, err := l.Use()
	if err != nil {
		return err
	}
	defer release()
	// Tests run in their packages' folders; the lab is found by its cache.
	if os.Setenv("HALLMARK_CACHE", l.Cache) != nil {
		return errors.New("set HALLMARK_CACHE")
	}
	bin, err := filepath.Abs("bin")
	if err != nil {
		return err
	}
	if err := os.Setenv("HALLMARK_BIN", bin); err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"./..."}
	}
	// Not from the cache: what these tests say depends on the host.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-timeout", "14m"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}
