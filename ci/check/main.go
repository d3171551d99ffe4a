// SPDX-License-Identifier: Apache-2.0

// Command check runs the module's tests on a running lab: it starts one when none runs, and
// then takes it down and proves that nothing is left. Arguments go to `go test`. Without any, the
// tests of ci/interop follow: another verifier on our bundles, in a module of its own.
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
	_, down, err := lab.Provide(ctx, os.Stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, down()) }()
	// Tests run in their packages' folders.
	bin, err := filepath.Abs("bin")
	if err != nil {
		return err
	}
	if err := os.Setenv("HALLMARK_BIN", bin); err != nil {
		return err
	}
	all := len(args) == 0
	if all {
		args = []string{"./..."}
	}
	// Not from the cache: what these tests say depends on the host.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-timeout", "30m"}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	if !all {
		return nil
	}
	// It takes a minute of one core to build the verifier, and no lab.
	cmd = exec.CommandContext(ctx, "go", "test", "-C", "ci/interop", "-count=1", "-timeout", "10m", "./...")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go test -C ci/interop: %w", err)
	}
	return nil
}
