// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
)

func (c *commands) flips() *cobra.Command {
	var g gate.Config
	var seed uint64
	var perBlob int
	var bundle string
	cmd := &cobra.Command{
		Use:   "flips --trust FILE --bundle DIR",
		Short: "Flip one bit at a time in an admitted bundle and ask the gate",
		Long: "Flips one bit at every offset of every small file of the bundle, and at seeded offsets of each\n" +
			"blob, in memory, and demands that the gate denies each with a reason code.\n" +
			"Exit status: 0 all denied, 1 one was not, 3 error (also when the bundle is not admitted as it is).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if g.Trust == "" || bundle == "" {
				return usage("flips needs a trust policy and a bundle", "name them with --trust FILE and --bundle DIR")
			}
			beside(cmd, &g.Root, g.Trust, gate.RootPublicFile, "root key")
			cat, err := c.catalogue()
			if err != nil {
				return err
			}
			g.Bundles, g.Catalogue, g.Now = []string{bundle}, cat, now()
			r, err := gate.Sweep(g, seed, perBlob)
			if err != nil {
				return failed(err, remedyOf(err))
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "%d files, %d flips, %d not denied\n", r.Files, r.Flips, len(r.Missed))
			for _, code := range slices.Sorted(maps.Keys(r.Reasons)) {
				fmt.Fprintf(out, "  %-24s %d\n", code, r.Reasons[code])
			}
			if len(r.Missed) > 0 {
				m := r.Missed[0]
				return &exit.Error{
					Status: exit.Negative, Remedy: "report this as a defect of the gate",
					Sentence: fmt.Sprintf("%d flipped bits were not denied, the first in %s at offset %d, bit %d", len(r.Missed), m.File, m.Offset, m.Bit),
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&g.Root, "root", "", "PEM file with the root's public key")
	f.StringVar(&g.Trust, "trust", "", "signed trust policy")
	f.StringVar(&bundle, "bundle", "", "bundle directory")
	f.IntVar(&perBlob, "per-blob", 1000, "offsets tried in each blob")
	f.Uint64Var(&seed, "seed", 1, "chooses bits and offsets")
	c.catalogueFlag(cmd)
	return cmd
}
