// SPDX-License-Identifier: Apache-2.0

// Command hallmark runs the conformance suite, makes and verifies evidence, and keeps the gate.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/evidencecmd"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/labcmd"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/mainjob"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
)

func main() {
	suite := conformance.Suite{Cases: cases.All(), Unproven: cases.Unproven(), Arming: cases.Arming(), Probes: cases.Probes(), Drivers: runcmd.Drivers(), Families: cases.Families()}
	if conformance.IsChild() {
		conformance.ChildMain(suite)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "hallmark",
		Short:         "Security conformance for sandboxed worker runtimes",
		Version:       fmt.Sprintf("%s, commit %s, tree %s", buildinfo.Version, buildinfo.Commit(), buildinfo.TreeState()),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &exit.Error{Status: exit.Failed, Sentence: err.Error(), Remedy: fmt.Sprintf("`%s --help` lists its flags", cmd.CommandPath())}
	})
	for _, group := range [][]*cobra.Command{runcmd.New(suite), evidencecmd.New(suite.Catalogue, conformance.ReferenceProfiles(), runcmd.Fleet), labcmd.New(), mainjob.New(suite)} {
		root.AddCommand(group...)
	}
	os.Exit(report(root.ExecuteContext(ctx)))
}

// report prints one sentence, then the remedy, and returns the exit status.
func report(err error) int {
	if err == nil {
		return exit.OK
	}
	var typed *exit.Error
	if !errors.As(err, &typed) {
		fmt.Fprintf(os.Stderr, "error: %v.\nremedy: see `hallmark --help`.\n", err)
		return exit.Failed
	}
	fmt.Fprintf(os.Stderr, "error: %v.\n", typed)
	if typed.Remedy != "" {
		fmt.Fprintf(os.Stderr, "remedy: %s.\n", typed.Remedy)
	}
	return typed.Status
}
