// SPDX-License-Identifier: Apache-2.0

// Package evidencecmd is the command line of evidence, trust policy and gate.
//
// It owns flags, defaults and what is printed. It never decides: package evidence does.
// stdout carries the answer, stderr the chosen defaults.
package evidencecmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/passphrase"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// New returns the commands evidence, trust and gate. catalogue is the one compiled in; the
// flag --catalogue takes another from a file, for evidence of another release. profiles are those
// that a new policy requires when none is named. fleet reads cohort files and folders of them.
func New(catalogue func() evidence.Catalogue, profiles []string, fleet func(paths []string) ([]evidence.FleetCohort, error)) []*cobra.Command {
	c := &commands{builtin: catalogue, profiles: profiles, fleet: fleet}
	return []*cobra.Command{c.evidence(), c.trust(), c.gate()}
}

type commands struct {
	builtin  func() evidence.Catalogue
	profiles []string
	fleet    func(paths []string) ([]evidence.FleetCohort, error)
	file     string
}

func (c *commands) catalogueFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.file, "catalogue", "", "JSON file with the verifier's own catalogue (default: the one compiled in)")
}

func (c *commands) catalogue() (evidence.Catalogue, error) {
	if c.file == "" {
		return c.builtin(), nil
	}
	text, err := os.ReadFile(c.file)
	if err != nil {
		return evidence.Catalogue{}, failed(err, "name a readable catalogue file")
	}
	var cat evidence.Catalogue
	err = strictjson.Unmarshal(text, &cat, strictjson.Limits{})
	if err == nil {
		err = cat.Check()
	}
	if err != nil {
		return cat, failed(err, "write it with `hallmark evidence catalogue`")
	}
	return cat, nil
}

// failed is exit status 3 with one sentence.
func failed(err error, remedy string) error {
	return &exit.Error{Status: exit.Failed, Sentence: err.Error(), Remedy: remedy}
}

// usage marks errors of flags and arguments.
func usage(sentence, remedy string) error {
	return &exit.Error{Status: exit.Failed, Sentence: sentence, Remedy: remedy}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Sprintf("%s takes no argument, got %q", cmd.CommandPath(), args[0]), "use its flags, see --help")
	}
	return nil
}

// beside fills value with the file of that name beside the trust file and says so.
func beside(cmd *cobra.Command, value *string, trust, name, what string) {
	if *value != "" {
		return
	}
	*value = filepath.Join(filepath.Dir(trust), name)
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s (beside the trust file)\n", what, *value)
}

func printJSON(cmd *cobra.Command, v any) error {
	b, err := strictjson.Marshal(v)
	if err != nil {
		return failed(err, "report this as a defect")
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n", b)
	return nil
}

// remedyOf suggests what to do about an error of the gate's work, by kind.
func remedyOf(err error) string {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "check the paths, or make the files with `hallmark trust init`"
	case errors.Is(err, os.ErrPermission):
		return "run as the user who owns the keys"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return "check the paths: one of them is a file where a directory is needed, or the reverse"
	case errors.Is(err, evidence.ErrMemory):
		return "end the other gate, or make new keys when the memory is lost"
	case errors.Is(err, signing.ErrKeyFile):
		return "use a PKCS8 key file of mode 0600, see `hallmark evidence keygen`"
	case errors.Is(err, evidence.ErrKey):
		return "use an Ed25519 or ECDSA P-256 public key in PEM"
	}
	return "see `hallmark gate --help`"
}

const bundleUsage = "bundle: a directory, or the .tar that `hallmark evidence pack` wrote (repeatable)"

const logUsage = "directory of the transparency log, where the policy demands one; its proofs lie beside the bundles"

func (c *commands) gate() *cobra.Command {
	var g gate.Config
	var asJSON, explain bool
	var below []string
	cmd := &cobra.Command{
		Use:   "gate --trust FILE --bundle DIR [--bundle DIR ...]",
		Short: "Decide on evidence bundles and write pins",
		Long: "Decides on evidence bundles under a trust policy and writes the pins that workers read. When the\n" +
			"policy names a fleet, give the bundles of all its cohorts: an image is released when each of them\n" +
			"has admitting evidence of it, and else the decision says which cohort keeps it back.\n" +
			"--explain prints every step of the decision; --json holds them always.\n" +
			"What is left out is looked for beside the trust file: root.pub, gate.key, state/, pins.json.\n" +
			"Exit status: 0 admitted, 1 denied, 3 error.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, dir := range below {
				found, err := bundlesBelow(dir)
				if err != nil {
					return err
				}
				g.Bundles = append(g.Bundles, found...)
			}
			if g.Trust == "" || len(g.Bundles) == 0 {
				return usage("gate needs a trust policy and a bundle", "name them with --trust FILE and --bundle DIR")
			}
			// An empty value is a slip of whoever wanted to ask, and would ask nothing.
			if f := cmd.Flags(); f.Changed("host") && !evidence.ValidDigest(g.Host) || f.Changed("nonce") && !evidence.ValidNonce(g.Nonce) {
				return usage(fmt.Sprintf("--host is %q, --nonce %q", g.Host, g.Nonce), "give what `hallmark evidence host` printed, and the nonce that `hallmark run` was given")
			}
			if f := cmd.Flags(); f.Changed("log") && g.Log == "" {
				return usage("--log names no directory", "name the directory of the log")
			}
			if err := bundlesExist(g.Bundles); err != nil {
				return err
			}
			beside(cmd, &g.Root, g.Trust, gate.RootPublicFile, "root key")
			beside(cmd, &g.Key, g.Trust, gate.GateKeyFile, "gate key")
			beside(cmd, &g.State, g.Trust, gate.StateDir, "state")
			beside(cmd, &g.Out, g.Trust, gate.PinsFile, "pins")
			cat, err := c.catalogue()
			if err != nil {
				return err
			}
			g.Catalogue, g.Now, g.Passphrase = cat, now(), passphrase.Ask
			r, err := gate.Run(g)
			if err != nil {
				return failed(err, remedyOfKey(err))
			}
			if asJSON {
				if err := printJSON(cmd, r); err != nil {
					return err
				}
			} else {
				if explain {
					explanation(cmd.OutOrStdout(), g, r)
				}
				answer(cmd.OutOrStdout(), g, r)
			}
			if r.Admitted {
				return nil
			}
			return refusal("the gate denies the evidence", r.Reason)
		},
	}
	f := cmd.Flags()
	f.StringVar(&g.Root, "root", "", "PEM file with the root's public key")
	f.StringVar(&g.Trust, "trust", "", "signed trust policy")
	f.StringArrayVar(&g.Bundles, "bundle", nil, bundleUsage)
	f.StringArrayVar(&below, "evidence", nil, "folder in which every bundle directory counts, for a fleet (repeatable)")
	f.StringVar(&g.Cohort, "cohort", "", "cohort id that the evidence must be of")
	f.StringArrayVar(&g.Want, "want", nil, "digest that every bundle must hold (repeatable)")
	f.StringArrayVar(&g.Images, "image", nil, "config digest of an image to release (repeatable; default: every workload of the evidence)")
	f.StringVar(&g.Log, "log", "", logUsage)
	f.StringVar(&g.Host, "host", "", "id of the host that the evidence must be of, as `hallmark evidence host` prints it")
	f.StringVar(&g.Nonce, "nonce", "", "nonce that the run must have been asked for with, as `hallmark run --nonce` was given it; one for each decision")
	f.BoolVar(&explain, "explain", false, "print every step of the decision")
	f.StringVar(&g.Key, "key", "", "private gate key: a file, or SCHEME://KEY of a KMS")
	f.StringVar(&g.State, "state", "", "directory of the rollback memory")
	f.StringVar(&g.Out, "out", "", "pins file to write")
	f.BoolVar(&asJSON, "json", false, "print the decision as JSON")
	c.catalogueFlag(cmd)
	return cmd
}
