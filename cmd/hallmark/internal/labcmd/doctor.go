// SPDX-License-Identifier: Apache-2.0

package labcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "doctor", Short: "Say what this machine lacks and how to get it; changes nothing", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := lab.CacheDir()
			if err != nil {
				return failed("the cache folder cannot be found", err)
			}
			checks := lab.Examine(cache)
			var missing []lab.Check
			for _, c := range checks {
				if c.Required && !c.OK {
					missing = append(missing, c)
				}
			}
			if asJSON {
				if err := writeJSON(cmd.OutOrStdout(), map[string]any{"ready": len(missing) == 0, "checks": checks}); err != nil {
					return err
				}
			} else if err := printChecks(cmd, checks); err != nil {
				return err
			}
			if len(missing) > 0 {
				return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("this machine lacks %d thing(s), the first is %s", len(missing), missing[0].Name), Remedy: missing[0].Remedy}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printChecks(cmd *cobra.Command, checks []lab.Check) error {
	for _, c := range checks {
		mark := "ok"
		switch {
		case !c.OK && c.Required:
			mark = "MISSING"
		case !c.OK:
			mark = "absent"
		}
		if err := say(cmd.OutOrStdout(), "%-8s %-20s %s", mark, c.Name, c.Detail); err != nil {
			return err
		}
		if !c.OK {
			if err := say(cmd.OutOrStdout(), "%-8s %-20s remedy: %s", "", "", c.Remedy); err != nil {
				return err
			}
		}
	}
	return nil
}
