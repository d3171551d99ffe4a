// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/passphrase"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

func (c *commands) trust() *cobra.Command {
	return exit.Group(&cobra.Command{Use: "trust", Short: "Make, sign and show trust policies"}, c.trustInit(), c.trustSign(), c.trustShow())
}

func (c *commands) trustInit() *cobra.Command {
	i := gate.InitConfig{}
	var days int
	var mutationKeys, waivers, fleet []string
	var log policyLog
	cmd := &cobra.Command{
		Use:   "init --dir DIR --identity ID",
		Short: "Make root, evidence and gate keys and a first signed policy",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if i.Dir == "" || i.Identity == "" {
				return usage("trust init needs a directory and an identity", "name them with --dir DIR and --identity ID")
			}
			if days < 1 || days > 366 {
				return usage(fmt.Sprintf("--days is %d", days), "use 1 to 366")
			}
			if i.Role != evidence.RoleCI && i.Role != evidence.RoleRelease && i.Role != evidence.RoleImplementer {
				return usage(fmt.Sprintf("--role is %q", i.Role), "use ci, release or implementer")
			}
			cat, err := c.catalogue()
			if err != nil {
				return err
			}
			for _, path := range mutationKeys {
				text, err := os.ReadFile(path)
				if err != nil {
					return failed(err, "name a public key file, such as the one that `hallmark mutants` keeps in the cache")
				}
				keys, err := evidence.ParsePublicKeysPEM(text)
				if err != nil {
					return failed(err, remedyOf(err))
				}
				i.MutationKeys = append(i.MutationKeys, keys...)
			}
			i.Catalogue, i.Now, i.Lifetime = cat, now(), time.Duration(days)*24*time.Hour
			if i.Waivers, err = parseWaivers(waivers, cat, i.Now); err != nil {
				return err
			}
			if i.Fleet, err = c.readFleet(fleet); err != nil {
				return err
			}
			if i.Log, err = log.demand(cmd.Flags()); err != nil {
				return err
			}
			if err := checkLog(i.Log); err != nil {
				return err
			}
			slices.Sort(i.Profiles)
			for _, name := range i.Profiles {
				if p, ok := cat.Profile(name); ok && len(cat.Lacks(p)) > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "profile %s: no case of this catalogue is about %s, so the gate will deny everything\n", name, strings.Join(cat.Lacks(p), ", "))
				}
			}
			if _, err := gate.Init(i); err != nil {
				remedy := "correct what is named"
				if errors.Is(err, os.ErrExist) {
					remedy = "use a new directory: keys are never replaced"
				}
				return failed(err, remedy)
			}
			for _, name := range []string{
				gate.RootKeyFile, gate.RootPublicFile, gate.EvidenceKeyFile, gate.PublicPath(gate.EvidenceKeyFile),
				gate.GateKeyFile, gate.PublicPath(gate.GateKeyFile), gate.TrustFile,
			} {
				fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(i.Dir, name))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&i.Dir, "dir", "", "new directory for keys and policy")
	f.StringVar(&i.Identity, "identity", "", "issuer id that the evidence key speaks for")
	f.StringVar(&i.Role, "role", evidence.RoleCI, "role of the evidence key: ci, release, implementer")
	f.StringSliceVar(&i.Profiles, "profile", c.profiles, "profiles that the policy requires")
	f.StringVar(&i.Mutation, "mutation-evidence", evidence.MutationRequired, "required or recorded")
	f.StringArrayVar(&mutationKeys, "mutation-key", nil, "public key that may sign mutation evidence besides the evidence key (repeatable)")
	f.StringArrayVar(&waivers, "waiver", nil, waiverUsage)
	f.StringArrayVar(&fleet, "fleet", nil, fleetUsage)
	f.StringVar(&i.Expression, "expression", "", expressionUsage)
	log.flags(f)
	f.BoolVar(&i.BindHosts, "bind-hosts", false, hostsUsage)
	f.IntVar(&days, "days", 90, "lifetime of policy and keys, at most 366")
	c.catalogueFlag(cmd)
	return cmd
}

func (c *commands) trustSign() *cobra.Command {
	var in, out string
	var keys []string
	var e policyEdit
	cmd := &cobra.Command{
		Use:   "sign --policy FILE --key FILE --out FILE",
		Short: "Sign a policy document with a root key",
		Long: "Signs a policy document, as `hallmark trust show --json` prints it, after the changes that the flags\n" +
			"name. --version sets its version, which must rise with every change, or gates and workers refuse it.\n" +
			"A root follows another in four steps: put the new public key beside the old one into every root.pub;\n" +
			"sign a version with both, by --key OLD --key NEW; sign the next with the new one; take the old one away.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in == "" || len(keys) == 0 || out == "" {
				return usage("trust sign needs a policy, a root key and an output file", "name them with --policy, --key and --out")
			}
			text, err := os.ReadFile(in)
			if err != nil {
				return failed(err, "name a readable policy, see `hallmark trust show --json`")
			}
			var p evidence.TrustPolicy
			if err := strictjson.Unmarshal(text, &p, strictjson.Limits{}); err != nil {
				return failed(err, "start from `hallmark trust show --json`")
			}
			if err := c.edit(cmd, &p, e); err != nil {
				return err
			}
			var roots []evidence.Signer
			for _, key := range keys {
				s, err := signing.Open(cmd.Context(), key, passphrase.Ask)
				if err != nil {
					return failed(err, remedyOfKey(err))
				}
				roots = append(roots, s)
			}
			file, err := evidence.SignPolicy(p, roots...)
			if err != nil {
				return failed(err, "correct the member that is named")
			}
			if err := evidence.WriteDurable(out, file, 0o644); err != nil {
				return failed(err, "name a writable file")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: version %d, %s\n", out, p.Version, evidence.Digest(file))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&in, "policy", "", "policy document, JSON")
	f.StringArrayVar(&keys, "key", nil, "private root key, a file or SCHEME://KEY of a KMS (repeatable, while a root follows another)")
	f.StringVar(&out, "out", "", "signed policy to write")
	e.flags(f)
	return cmd
}

func (c *commands) trustShow() *cobra.Command {
	var root, trust string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show --trust FILE",
		Short: "Verify a trust policy and show it",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if trust == "" {
				return usage("trust show needs a policy", "name it with --trust FILE")
			}
			beside(cmd, &root, trust, gate.RootPublicFile, "root key")
			p, err := openPolicy(root, trust)
			if err != nil {
				return err
			}
			d := p.Document()
			if asJSON {
				return printJSON(cmd, d)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "policy     %s\nversion    %d\nexpires    %s\nprofiles   %q\ncatalogue  %s, %d cases, %s\nmutation   %s\n",
				p.Digest(), d.Version, d.Expires, d.Profiles, d.Catalogue.ID, len(d.Catalogue.Cases), p.CatalogueDigest(), d.MutationEvidence)
			for _, k := range d.Keys {
				state := "until " + string(k.NotAfter)
				if k.RevokedAt != "" {
					state = "revoked at " + string(k.RevokedAt)
				}
				fmt.Fprintf(out, "key        %-12s %s %s %s cohorts %s %s\n", k.Role, k.SPKIDigest, k.Algorithm, k.Identity, k.Cohorts, state)
			}
			for _, m := range d.Fleet {
				fmt.Fprintf(out, "fleet      %s, for %q\n", m.Name, m.Profiles)
			}
			if d.BindHosts {
				fmt.Fprintln(out, "hosts      bound")
			}
			if d.Log != nil {
				fmt.Fprintf(out, "log        %s, cosigned by %d of %d\n", d.Log.Key, d.Log.Threshold, len(d.Log.Witnesses))
			}
			if d.Expression != "" {
				fmt.Fprintf(out, "expression %s\n", d.Expression)
			}
			for _, w := range d.Waivers {
				state := ""
				if end, _ := w.Expires.Time(); !now().Before(end) {
					state = " (has ended)"
				}
				fmt.Fprintf(out, "waiver     %s%s\n", showWaiver(w), state)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "PEM file with the root's public key")
	cmd.Flags().StringVar(&trust, "trust", "", "signed trust policy")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the policy document, as trust sign reads it")
	return cmd
}

// openPolicy verifies a policy without a rollback memory: what it says now, not whether it is
// the newest.
func openPolicy(root, trust string) (*evidence.Policy, error) {
	rootText, err := os.ReadFile(root)
	if err != nil {
		return nil, failed(err, remedyOf(err))
	}
	roots, err := evidence.ParsePublicKeysPEM(rootText)
	if err != nil {
		return nil, failed(err, remedyOf(err))
	}
	text, err := os.ReadFile(trust)
	if err != nil {
		return nil, failed(err, remedyOf(err))
	}
	p, err := evidence.OpenPolicy(text, roots, evidence.NewMemory(), now())
	if err != nil {
		return nil, denied(err)
	}
	return p, nil
}
