// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/targettest"
)

func targetCommand(suite conformance.Suite) *cobra.Command {
	parent := &cobra.Command{Use: "target", Short: "Look at targets of one's own"}
	var tenant string
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Check every promise that a target's driver makes, before the suite attacks it",
		Long: "Check every promise that a target's driver makes, before the suite attacks it: ids, commands, files,\n" +
			"errors, parts, ends. Nothing is attacked, and a target that keeps them all may still fail every case.\n\n" +
			"Exit status: 0 every promise is kept, 1 one is broken, 3 usage or engine error.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if suite.Drivers == nil {
				suite.Drivers = Drivers()
			}
			file, err := ReadTargetFile(args[0])
			if err != nil {
				return targetError(err)
			}
			return checkTarget(cmd.Context(), cmd.OutOrStdout(), suite, file, tenant)
		},
	}
	check.Flags().StringVar(&tenant, "tenant", "", "program that is run in the sandboxes (default: hallmark-tenant beside this program)")
	parent.AddCommand(check)
	return parent
}

func checkTarget(ctx context.Context, w io.Writer, suite conformance.Suite, file TargetFile, tenant string) error {
	open, ok := suite.Drivers[file.Driver]
	if !ok {
		return targetError(fmt.Errorf("unknown driver %q", file.Driver))
	}
	workloads, err := file.workloads(ctx)
	if err != nil {
		return err
	}
	if tenant, err = tenantBinary(ctx, Params{Tenant: tenant}); err != nil {
		return failed("the program for the sandboxes is missing", err)
	}
	root, err := runsFolder()
	if err != nil {
		return err
	}
	// As in a run: the driver sweeps the folder two above its own, which must be that of this user's runs.
	work := filepath.Join(root, "check-"+rand.Text())
	if err := os.Mkdir(work, 0o711); err != nil {
		return failed("no folder for the target's state", err)
	}
	lock, err := target.LockRun(work)
	if err != nil {
		return failed("no folder for the target's state", errors.Join(err, os.Remove(work)))
	}
	defer lock.Close()
	dir := filepath.Join(work, "p1")
	tg, err := open(ctx, json.RawMessage(file.Config), dir)
	if err != nil {
		return &exit.Error{Status: exit.Failed, Sentence: "the target cannot be opened", Cause: errors.Join(err, target.RemoveRun(work)), Remedy: "docs/targets.md says what each driver needs"}
	}
	broken := 0
	findings := targettest.Examine(ctx, tg, targettest.Options{Tenant: tenant, Image: workloads[0].ConfigDigest, Dir: dir}, func(f targettest.Finding) {
		switch {
		case f.Err != nil:
			broken++
			fmt.Fprintf(w, "BROKEN  %-14s %s\n%s\n", f.Name, f.Promise, indented(f.Err.Error()))
		case f.NotOffered != "":
			fmt.Fprintf(w, "absent  %-14s %s\n", f.Name, f.NotOffered)
		default:
			fmt.Fprintf(w, "kept    %-14s %s\n", f.Name, f.Promise)
		}
	})
	if err := target.RemoveRun(work); err != nil {
		broken++
		fmt.Fprintf(w, "BROKEN  %-14s %s\n", "folder", err)
	}
	if broken > 0 {
		return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("%d of %d promises are broken", broken, len(findings)), Remedy: "mend the first one first: others may follow from it"}
	}
	_, err = fmt.Fprintf(w, "parts:  %s\n", strings.Join(tg.Parts, " "))
	return err
}

func indented(text string) string {
	return "        " + strings.ReplaceAll(text, "\n", "\n        ")
}
