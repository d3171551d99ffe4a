// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
)

func casesCommand(suite conformance.Suite) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "cases", Short: "List the cases of the catalogue", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := map[string]func(io.Writer, []conformance.Case) error{"table": casesTable, "json": casesJSON, "md": casesMarkdown}[format]
			if write == nil {
				return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("unknown format %q", format), Remedy: "use table, json or md"}
			}
			return write(cmd.OutOrStdout(), suite.Cases)
		},
	}
	cmd.Flags().StringVar(&format, "format", "table", "table, json or md")
	return cmd
}

func mutants(c conformance.Case) []string {
	out := []string{}
	for _, k := range c.Kills {
		out = append(out, k.Mutant)
	}
	return out
}

func casesTable(w io.Writer, cases []conformance.Case) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tREV\tTIER\tTITLE\tMUTANTS")
	for _, c := range cases {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", c.ID, c.Revision, c.Tier, c.Title, strings.Join(mutants(c), ","))
	}
	return t.Flush()
}

func casesMarkdown(w io.Writer, cases []conformance.Case) error {
	var b strings.Builder
	cell := func(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
	b.WriteString("| ID | Rev | Tier | Title | Requirement | Attack | Witness | Oracle | Precedent | Mutants |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range cases {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", c.ID, c.Revision, c.Tier, cell(c.Title), cell(c.Requirement),
			cell(c.Attack), cell(c.Witness), cell(c.Oracle), cell(c.Precedent), strings.Join(mutants(c), ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// caseRow is one case in JSON: the value without its code.
type caseRow struct {
	ID          string                `json:"id"`
	Revision    int                   `json:"revision"`
	Title       string                `json:"title"`
	Tier        conformance.Tier      `json:"tier"`
	Requirement string                `json:"requirement"`
	Threat      string                `json:"threat"`
	Attack      string                `json:"attack"`
	Witness     string                `json:"witness"`
	Oracle      string                `json:"oracle"`
	Precedent   string                `json:"precedent"`
	Control     bool                  `json:"control"`
	PerImage    bool                  `json:"perImage"`
	TimeoutMs   int64                 `json:"timeoutMs"`
	Features    []conformance.Feature `json:"features"`
	Needs       []conformance.Part    `json:"needs"`
	Oracles     []conformance.Oracle  `json:"oracles"`
	Mutants     []string              `json:"mutants"`
}

func casesJSON(w io.Writer, cases []conformance.Case) error {
	rows := []caseRow{}
	for _, c := range cases {
		rows = append(rows, caseRow{
			ID: c.ID, Revision: c.Revision, Title: c.Title, Tier: c.Tier, Requirement: c.Requirement, Threat: c.Threat, Attack: c.Attack,
			Witness: c.Witness, Oracle: c.Oracle, Precedent: c.Precedent, Control: c.Control, PerImage: c.PerImage, TimeoutMs: c.Timeout.Milliseconds(),
			Features: append([]conformance.Feature{}, c.Features...), Needs: append([]conformance.Part{}, c.Needs...),
			Oracles: append([]conformance.Oracle{}, c.Oracles...), Mutants: mutants(c),
		})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}
