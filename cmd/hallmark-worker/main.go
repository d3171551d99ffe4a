// SPDX-License-Identifier: Apache-2.0

// Command hallmark-worker is the reference runtime's daemon. It owns the wiring: it reads one
// strict JSON file, builds the parts of reference/ out of it, and ends them in order. It never
// listens before the start-up checks and the reconcile are complete, and decides nothing that
// a package of reference/ decides.
//
//	hallmark-worker serve --config FILE
//	hallmark-worker check-config --config FILE
//	hallmark-worker version
//
// Errors go to standard error: one sentence, then the remedy. Exit status 0 after a clean
// shutdown; 1 when the start was refused for want of evidence, or the shutdown left something;
// 3 when the arguments, the configuration or the host are not as needed; 4 when the host is not ready, and
// the same start may succeed later. SIGTERM and SIGINT
// drain and retire; a second signal ends the process at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// Exit statuses.
const (
	exitNegative = 1
	exitFailed   = 3
	exitNotReady = 4
)

// failure is what the operator is told.
type failure struct {
	status   int
	sentence string
	remedy   string
	cause    error
}

func (f *failure) Error() string { return f.sentence + ": " + f.cause.Error() }

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.cause }

func main() {
	unix.Umask(0o077)
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	go obey(signals, cancel)
	os.Exit(report(os.Stderr, run(ctx, os.Args[1:], os.Stdout)))
}

// obey ends gracefully at the first signal, and at the second as if the process had no handler, so
// that its parent sees which one it was. Both are waited for in one place: a second one that
// comes while the first is being handled is not lost.
func obey(signals <-chan os.Signal, cancel func()) {
	<-signals
	cancel()
	second := <-signals
	signal.Reset(unix.SIGTERM, unix.SIGINT)
	_ = unix.Kill(os.Getpid(), second.(unix.Signal))
}

// report prints err for the operator and returns the exit status.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	f := &failure{status: exitFailed, sentence: "the worker failed", remedy: "see its log", cause: err}
	errors.As(err, &f)
	fmt.Fprintf(w, "hallmark-worker: %v\n%s\n", f, f.remedy)
	return f.status
}

const usage = `usage: hallmark-worker serve --config FILE          run the worker
       hallmark-worker check-config --config FILE   explain a configuration file
       hallmark-worker version`

func wrongUsage(err error) error {
	return &failure{exitFailed, "the arguments are wrong", usage, err}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return wrongUsage(errors.New("no command"))
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	switch args[0] {
	case "--help", "-h", "help":
		_, err := fmt.Fprintln(out, usage)
		return err
	case "version":
		if len(args) != 1 {
			return wrongUsage(errors.New("version takes nothing"))
		}
		_, err := fmt.Fprintf(out, "hallmark-worker %s commit %s tree %s\n", buildinfo.Version, buildinfo.Commit(), buildinfo.TreeState())
		return err
	case "serve", "check-config":
		path := fs.String("config", "", "configuration file")
		if err := fs.Parse(args[1:]); err != nil {
			return wrongUsage(err)
		}
		if *path == "" || fs.NArg() != 0 {
			return wrongUsage(fmt.Errorf("%s takes --config FILE and nothing else", args[0]))
		}
		if args[0] == "check-config" {
			return checkConfig(*path, out)
		}
		cfg, err := worker.LoadConfig(*path)
		if err != nil {
			return &failure{exitFailed, "the configuration is not valid", "correct it; `hallmark-worker check-config` explains the file and every problem", err}
		}
		return serve(ctx, cfg)
	}
	return wrongUsage(fmt.Errorf("unknown command %q", args[0]))
}

// needs makes a failure of the host or the configuration out of err; a refusal for want of
// evidence keeps its own sentence.
func needs(err error, sentence, remedy string) error {
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.Unqualified {
		return &failure{exitNegative, "this worker may not start, since no live evidence admits it (" + string(api.Unqualified) + ")",
			"run the conformance suite on this cohort and `hallmark gate`, or restore what was admitted", err}
	}
	if passing(err) {
		return &failure{exitNotReady, sentence, "wait and start again; if that does not help: " + remedy, err}
	}
	return &failure{exitFailed, sentence, remedy, err}
}

// passing reports whether err may pass by itself: an engine that does not answer yet, an address that is
// taken still or not there yet, a deadline that a slow host has missed.
func passing(err error) bool {
	return errors.Is(err, engine.ErrNoAnswer) || errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) ||
		errors.Is(err, context.DeadlineExceeded)
}
