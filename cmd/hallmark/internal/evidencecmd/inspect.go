// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
)

func (c *commands) inspect() *cobra.Command {
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect --bundle DIR",
		Short: "Print the statement of a bundle WITHOUT verifying anything",
		Long: "Prints what a bundle says, without asking who said it: a summary, then the statement, indented.\n" +
			"With --json the signed bytes of the statement and nothing else.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usage("inspect needs a bundle", "name it with --bundle DIR")
			}
			if err := bundlesExist([]string{dir}); err != nil {
				return err
			}
			b, err := gate.ReadBundle(dir, evidence.AdmitDepth)
			if err != nil {
				return failed(err, "name a bundle directory")
			}
			st, payload, err := evidence.UnverifiedStatement(b)
			if err != nil {
				return failed(err, "this is no bundle of ours")
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "nothing of this was verified")
			out := cmd.OutOrStdout()
			if asJSON {
				_, err = fmt.Fprintf(out, "%s\n", payload)
				return err
			}
			head(out, st, len(b.Names()))
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, payload, "", "  "); err != nil {
				return failed(err, "report this as a defect")
			}
			_, err = fmt.Fprintf(out, "\n%s\n", pretty.Bytes())
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "bundle", "", "bundle: a directory, or the .tar that `hallmark evidence pack` wrote")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the signed bytes of the statement only")
	return cmd
}

// head is what a person looks for first. Every word of it is the bundle's own.
func head(w io.Writer, st evidence.Statement, signers int) {
	p := st.Predicate
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	c, d := p.Summary.Counts, p.Cohort.Descriptor
	line("verdict", "%s, as it says itself: %d of %d cases pass, for %s", p.Summary.Verdict, c.Pass, c.Total, strings.Join(p.Profiles, ", "))
	for _, f := range p.Summary.Findings {
		line("", "%s", strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Case, f.Code, f.Text)))
	}
	line("issuer", "%s, role %s, runtime %s, %d signers", p.Issuer.ID, p.Issuer.Role, p.Issuer.Runtime, signers)
	line("target", "driver %s, mode %s, version %s, claims %s", p.Target.Driver, p.Target.Mode, p.Target.Version, strings.Join(p.Target.Claims, ", "))
	var seen []string
	for _, f := range p.Run.Arming.Features {
		seen = append(seen, f.Feature+" "+f.Observed)
	}
	line("features", "%s", strings.Join(seen, ", "))
	line("cohort", "%s", p.Cohort.ID)
	line("", "%s, kernel %s, engine %s, sandbox %s %s, quota %s on %s", d.Arch, d.Kernel.Release, d.Engine.Version, d.Sandbox.Platform, d.Sandbox.Version, d.Quota.Backend, d.Quota.Filesystem)
	line("suite", "%s %s, commit %s, %s tree, catalogue %s", p.Suite.Name, p.Suite.Version, p.Suite.Commit, p.Suite.TreeState, p.Suite.CatalogueID)
	line("run", "%s, %s to %s, sequence %d", p.Run.ID, p.Run.StartedAt, p.Run.FinishedAt, p.Run.Sequence)
	if p.Run.Host != "" {
		line("host", "%s", p.Run.Host)
	}
	if p.Run.Nonce != "" {
		line("nonce", "%s", p.Run.Nonce)
	}
	line("valid", "%s to %s", p.Validity.NotBefore, p.Validity.NotAfter)
	for _, m := range p.Images {
		line(m.Role, "%s  %s", m.ConfigDigest, m.Name)
	}
	for _, b := range p.Binaries {
		line(b.Role, "%s  %s", b.Digest, b.Name)
	}
	switch m := p.MutationEvidence; {
	case m == nil:
		line("mutants", "none recorded")
	default:
		line("mutants", "%d pairs of mutant and case", len(m.Rows))
	}
	line("artifacts", "%d", len(p.Artifacts.Items))
}
