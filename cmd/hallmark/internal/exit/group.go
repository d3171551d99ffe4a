// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Group makes cmd a command that only holds others: without one, or with a word that is none of
// them, it is a usage error. Cobra alone prints help and exits with 0.
func Group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sentence := cmd.CommandPath() + " needs a command"
		if len(args) > 0 {
			sentence = fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		}
		return &Error{Status: Failed, Sentence: sentence, Remedy: fmt.Sprintf("see `%s --help`", cmd.CommandPath())}
	}
	return cmd
}
