// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/evidence/corpus"
)

func (c *commands) mutate() *cobra.Command {
	var k corpus.Config
	cmd := &cobra.Command{
		Use:   "mutate --bundle DIR --trust FILE --out DIR",
		Short: "Write the negative corpus of a good bundle, under throw-away keys",
		Long: "Signs the bundle again with throw-away keys and writes one folder per row: a changed bundle,\n" +
			"what the gate needs to judge it, and expect.json with the reason code that it must give.\n" +
			"000-unmodified must be admitted. The corpus can be judged for a week.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if k.Bundle == "" || k.Trust == "" || k.Out == "" {
				return usage("mutate needs a bundle, its trust policy and an output directory", "name them with --bundle, --trust and --out")
			}
			k.Now = now()
			rows, err := corpus.Generate(k)
			if err != nil {
				return failed(err, "give a bundle that the gate admits, and a new directory")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d rows in %s\n", len(rows), k.Out)
			return nil
		},
	}
	cmd.Flags().StringVar(&k.Bundle, "bundle", "", "directory of a bundle that its gate admits")
	cmd.Flags().StringVar(&k.Trust, "trust", "", "the trust policy that admits it")
	cmd.Flags().StringVar(&k.Out, "out", "", "new directory for the rows")
	return cmd
}

func (c *commands) selftest() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "selftest DIR",
		Short: "Run the gate on every row of a negative corpus",
		Long:  "Exit status: 0 when every row is judged as it expects, 1 when one is not, 3 error.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("selftest needs one corpus directory", "make it with `hallmark evidence mutate`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cat, err := c.catalogue()
			if err != nil {
				return err
			}
			rows, err := corpus.Selftest(args[0], cat, now())
			if err != nil {
				return failed(err, "make the corpus again with `hallmark evidence mutate`")
			}
			wrong := 0
			for _, r := range rows {
				if !r.Agrees() {
					wrong++
				}
			}
			if asJSON {
				if err := printJSON(cmd, rows); err != nil {
					return err
				}
			} else if err := table(cmd, rows); err != nil {
				return failed(err, "free the output")
			}
			if !asJSON {
				fmt.Fprintf(cmd.OutOrStdout(), "%d of %d rows as expected\n", len(rows)-wrong, len(rows))
			}
			if wrong > 0 {
				return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("the gate disagrees with %d of %d rows", wrong, len(rows)), Remedy: "correct the gate, or the row"}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the rows as JSON")
	c.catalogueFlag(cmd)
	return cmd
}

func table(cmd *cobra.Command, rows []corpus.Result) error {
	word := func(code string) string {
		if code == "" {
			return "admitted"
		}
		return code
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ROW\tGROUP\tEXPECTED\tGOT\t")
	for _, r := range rows {
		mark := ""
		if !r.Agrees() {
			mark = "WRONG: " + r.Detail
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Row, r.Group, word(string(r.Reason)), word(string(r.Got)), mark)
	}
	return w.Flush()
}
