// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/reference/cohort"
)

func (c *commands) evidence() *cobra.Command {
	return exit.Group(&cobra.Command{Use: "evidence", Short: "Make keys, look into bundles, verify and move them"},
		c.keygen(), c.publicKey(), c.inspect(), c.verify(), c.pack(), c.unpack(), c.push(), c.pull(), c.log(),
		c.mutate(), c.selftest(), c.flips(), c.showCatalogue(), c.host())
}

func (c *commands) verify() *cobra.Command {
	var root, trust, cohort, log string
	var bundles []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify --trust FILE --bundle DIR [--bundle DIR ...]",
		Short: "Say what the gate would decide, without memory and without pins",
		Long: "Audits bundles under a trust policy. It neither reads nor writes a rollback memory and\n" +
			"makes no pins: use gate for a decision that counts. Exit status: 0 admitted, 1 denied, 3 error.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if trust == "" || len(bundles) == 0 {
				return usage("verify needs a trust policy and a bundle", "name them with --trust FILE and --bundle DIR")
			}
			if err := bundlesExist(bundles); err != nil {
				return err
			}
			beside(cmd, &root, trust, gate.RootPublicFile, "root key")
			p, err := openPolicy(root, trust)
			if err != nil {
				return err
			}
			cat, err := c.catalogue()
			if err != nil {
				return err
			}
			ledger, err := gate.FollowLog(p, log, "", nil)
			if err != nil {
				return denied(err)
			}
			var first error
			for _, dir := range bundles {
				d, err := gate.Decide(evidence.Question{
					Policy: p, Memory: evidence.NewMemory(), Catalogue: &cat, Cohort: cohort, Now: now(), Depth: evidence.AuditDepth,
				}, dir, ledger)
				if err != nil {
					return denied(err)
				}
				if asJSON {
					if err := printJSON(cmd, d); err != nil {
						return err
					}
				} else if d.Admitted {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: would be admitted for cohort %s\n", dir, d.Cohort)
					for _, w := range d.Waivers {
						fmt.Fprintf(cmd.OutOrStdout(), "  waived     %s\n", showWaiver(w))
					}
				} else {
					denial(cmd.OutOrStdout(), dir+": would be denied", d)
				}
				if !d.Admitted && first == nil {
					first = refusal("the gate would deny "+dir, d.Reason)
				}
			}
			return first
		},
	}
	f := cmd.Flags()
	f.StringVar(&root, "root", "", "PEM file with the root's public key")
	f.StringVar(&trust, "trust", "", "signed trust policy")
	f.StringVar(&cohort, "cohort", "", "cohort id that the evidence must be of")
	f.StringVar(&log, "log", "", logUsage)
	f.StringArrayVar(&bundles, "bundle", nil, bundleUsage)
	f.BoolVar(&asJSON, "json", false, "print each decision as JSON")
	c.catalogueFlag(cmd)
	return cmd
}

func (c *commands) host() *cobra.Command {
	return &cobra.Command{
		Use:   "host",
		Short: "Print the id of this host, as evidence names it",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			id, err := cohort.HostID()
			if err == nil && id == "" {
				err = errors.New("it has no machine-id(5)")
			}
			if err != nil {
				return failed(fmt.Errorf("this host has no id: %w", err), "give it one with systemd-machine-id-setup")
			}
			fmt.Fprintln(cmd.OutOrStdout(), id)
			return nil
		},
	}
}

func (c *commands) showCatalogue() *cobra.Command {
	return &cobra.Command{
		Use:   "catalogue",
		Short: "Print the catalogue that this program holds, as --catalogue reads it",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printJSON(cmd, c.builtin()) },
	}
}

// denied is exit status 1 for a refusal, 3 for the rest.
func denied(err error) error {
	if evidence.ReasonOf(err) == "" {
		return failed(err, remedyOf(err))
	}
	return &exit.Error{Status: exit.Negative, Sentence: err.Error(), Remedy: evidence.ReasonOf(err).Remedy()}
}
