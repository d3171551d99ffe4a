// SPDX-License-Identifier: Apache-2.0

package labcmd

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

func cohortCommand() *cobra.Command {
	return exit.Group(&cobra.Command{Use: "cohort", Short: "The measured combination of kernel, engine and sandbox"}, probeCommand())
}

func probeCommand() *cobra.Command {
	var asJSON bool
	var runtime string
	c := &cobra.Command{
		Use: "probe", Short: "Measure the cohort's facts and probe the sandbox's capabilities", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			repo, err := lab.RepoDir()
			if err != nil {
				return failed("the repository cannot be found", err)
			}
			l, err := lab.Up(ctx, lab.Options{Out: cmd.ErrOrStderr(), Bound: true})
			if err != nil {
				return failed("the lab cannot be started", err)
			}
			if l.Fresh {
				defer func() {
					cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
					defer cancel()
					if derr := l.Down(cleanup); derr != nil {
						err = errors.Join(err, failed("the lab is not gone", derr))
					}
				}()
			}
			got, err := l.Cohort(ctx, runtime, repo)
			if err != nil {
				return failed("the cohort cannot be measured", err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), got)
			}
			return printCohort(cmd, got)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&runtime, "runtime", lab.RuntimeRunsc, "registered runtime: runsc, runsc-deb, runsc-deb13 or runc")
	return c
}

func printCohort(cmd *cobra.Command, c evidence.Cohort) error {
	d := c.Descriptor
	rows := [][2]string{
		{"cohort", c.ID}, {"kernel", d.Kernel.Release + " " + d.Arch}, {"cgroups", d.CgroupMode},
		{"engine", d.Engine.Version + " " + d.Engine.EngineDigest}, {"storage", d.Engine.StorageDriver + ", " + d.Engine.ImageStore + " image store"},
		{"sandbox", d.Sandbox.Version + " " + d.Sandbox.Platform + " " + d.Runtime.BinaryDigest}, {"quota", d.Quota.Backend + " on " + d.Quota.Filesystem},
	}
	names := make([]string, 0, len(c.Capabilities))
	for n := range c.Capabilities {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		rows = append(rows, [2]string{n, c.Capabilities[n]})
	}
	for _, r := range rows {
		if err := say(cmd.OutOrStdout(), "%-24s %s", r[0], r[1]); err != nil {
			return err
		}
	}
	return nil
}
