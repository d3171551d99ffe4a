// SPDX-License-Identifier: Apache-2.0

// Package labcmd has the commands that prepare and describe this machine: lab,
// doctor and cohort.
//
// It owns their flags, their output and their exit statuses, and nothing else:
// package ci/lab does the work. It never starts a service, and never leaves a lab
// running that the user did not ask for. Read ci/lab next.
package labcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
)

// New returns the commands.
func New() []*cobra.Command {
	return []*cobra.Command{labCommand(), doctorCommand(), cohortCommand()}
}

func labCommand() *cobra.Command {
	return exit.Group(&cobra.Command{Use: "lab", Short: "A private container engine with real sandbox runtimes"},
		upCommand(), downCommand(), statusCommand(), vmCommand())
}

func upCommand() *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Start the lab, or find the one that runs; sweep what a killed one left", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := lab.Up(cmd.Context(), lab.Options{Out: cmd.ErrOrStderr()})
			if err != nil {
				return failed("the lab cannot be started", err)
			}
			word := "was running already"
			if l.Fresh {
				word = "is running"
			}
			return describe(cmd.OutOrStdout(), l, word)
		},
	}
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "Stop the lab and prove that nothing of it is left on the host", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := lab.Find()
			if err == nil {
				release, err := lab.Unused(l.Cache)
				if errors.Is(err, lab.ErrInUse) {
					return &exit.Error{Status: exit.Negative, Sentence: err.Error(), Remedy: "wait for that command or end it, then run hallmark lab down again"}
				}
				if err != nil {
					return failed("the lab cannot be taken down", err)
				}
				defer release()
				if err := l.Down(cmd.Context()); err != nil {
					return &exit.Error{Status: exit.Negative, Sentence: "the lab is not gone", Remedy: "look at what is listed, end it, and run hallmark lab down again", Cause: err}
				}
				return say(cmd.OutOrStdout(), "The lab is down; no container, process, mount, loop device, cgroup or network namespace of it is left.")
			}
			if !errors.Is(err, lab.ErrNotRunning) {
				return failed("the lab cannot be found", err)
			}
			return sweep(cmd)
		},
	}
}

// sweep serves "down" when no engine answers: a killed lab still has to go.
func sweep(cmd *cobra.Command) error {
	cache, err := lab.CacheDir()
	if err != nil {
		return failed("the cache folder cannot be found", err)
	}
	lines, err := lab.Sweep(cmd.Context(), cache)
	var missing *lab.MissingError
	if errors.As(err, &missing) {
		return failed("whether something of a lab is left cannot be told", err)
	}
	if err != nil {
		return &exit.Error{Status: exit.Negative, Sentence: "the lab is not gone", Remedy: "look at what is listed, end it, and run hallmark lab down again", Cause: err}
	}
	for _, line := range lines {
		if _, err := io.WriteString(cmd.ErrOrStderr(), line); err != nil {
			return err
		}
	}
	return say(cmd.OutOrStdout(), "No lab was running; nothing of one is left on the host.")
}

func statusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "Say whether the lab runs, and with what; exit 1 when it does not", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := lab.Find()
			if errors.Is(err, lab.ErrNotRunning) {
				if asJSON {
					if err := writeJSON(cmd.OutOrStdout(), map[string]any{"running": false}); err != nil {
						return err
					}
				}
				return &exit.Error{Status: exit.Negative, Sentence: "no lab is running", Remedy: "hallmark lab up"}
			}
			if err != nil {
				return failed("the lab cannot be found", err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), struct {
					Running bool `json:"running"`
					*lab.Lab
				}{true, l})
			}
			return describe(cmd.OutOrStdout(), l, "is running")
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func describe(w io.Writer, l *lab.Lab, word string) error {
	if err := say(w, "The lab %s: engine process %d, socket %s, cgroup parent %s (%s).", word, l.EnginePid, l.Socket, l.CgroupParent, l.CgroupMode); err != nil {
		return err
	}
	for _, name := range []string{lab.RuntimeRunsc, lab.RuntimeAlt, lab.RuntimeDeb13, lab.RuntimeRunc} {
		rt, ok := l.Runtimes[name]
		if !ok {
			if err := say(w, "  %-11s absent: %s", name, l.Missing[name]); err != nil {
				return err
			}
			continue
		}
		if err := say(w, "  %-11s %s  %s", name, rt.Version, rt.Digest); err != nil {
			return err
		}
	}
	if l.Bubblewrap.Path == "" {
		return say(w, "  %-11s absent: %s", lab.Bubblewrap, l.Missing[lab.Bubblewrap])
	}
	return say(w, "  %-11s %s  %s", lab.Bubblewrap, l.Bubblewrap.Package, l.Bubblewrap.Digest)
}

func say(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(w, format+"\n", args...)
	return err
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// failed makes the exit error, with the remedy that a missing thing carries.
func failed(sentence string, err error) error {
	out := &exit.Error{Status: exit.Failed, Sentence: sentence, Cause: err}
	var missing *lab.MissingError
	switch {
	case errors.As(err, &missing):
		out.Remedy = missing.Remedy
	case errors.Is(err, context.Canceled):
		out.Remedy = "it was interrupted; run it again"
	default:
		out.Remedy = "hallmark doctor says what this machine lacks"
	}
	return out
}
