// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/passphrase"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/registry"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/evidence/translog"
)

func (c *commands) log() *cobra.Command {
	return exit.Group(&cobra.Command{Use: "log", Short: "Keep evidence in a transparency log, and look after one"},
		c.logInit(), c.logAdd(), c.logCosign(), c.logProve(), c.logVerify(), c.logFollow())
}

// logFlags are those of a command on a log. Each command takes the ones that it needs.
type logFlags struct {
	dir, origin, key, memory, vkey string
	witnesses                      []string
	threshold                      int
}

func (l *logFlags) where(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.dir, "log", "", "directory of the log")
}

func (l *logFlags) writer(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.origin, "origin", "", "name of the log, such as log.example/hallmark")
	cmd.Flags().StringVar(&l.key, "key", "", "private key of the log, Ed25519: a file, or SCHEME://KEY of a KMS")
	cmd.Flags().StringVar(&l.memory, "memory", "", "file with the last checkpoint of this key (default: beside the key file)")
}

func (l *logFlags) trust(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.vkey, "log-key", "", "verifier key of the log, as log init prints it")
	cmd.Flags().StringArrayVar(&l.witnesses, "witness", nil, "verifier key of a witness, as public-key --witness prints it (repeatable)")
	cmd.Flags().IntVar(&l.threshold, "witnesses", 0, "how many of the witnesses must have cosigned")
}

// open loads the log's key and completes the place of the memory.
func (l *logFlags) open(cmd *cobra.Command) (*signing.Signer, error) {
	if l.dir == "" || l.origin == "" || l.key == "" {
		return nil, usage("this needs the log's directory, name and key", "name them with --log, --origin and --key")
	}
	if l.memory == "" {
		if signing.IsKMS(l.key) {
			return nil, usage("a key of a KMS has no file beside which its memory could lie", "name a file with --memory")
		}
		l.memory = translog.MemoryPath(l.key)
		fmt.Fprintf(cmd.ErrOrStderr(), "memory: %s (beside the key)\n", l.memory)
	}
	s, err := signing.Open(cmd.Context(), l.key, passphrase.Ask)
	if err != nil {
		return nil, failed(err, remedyOfKey(err))
	}
	return s, nil
}

func (l *logFlags) trusted() (*translog.Trust, error) {
	if l.vkey == "" {
		return nil, usage("this needs the verifier key of the log", "give it with --log-key, as `hallmark evidence log init` prints it")
	}
	t, err := translog.NewTrust(l.vkey, l.witnesses, l.threshold)
	if err != nil {
		return nil, failed(err, "give verifier keys as `hallmark evidence log init` and `hallmark evidence public-key --witness` print them")
	}
	return t, nil
}

func (c *commands) logInit() *cobra.Command {
	var l logFlags
	cmd := &cobra.Command{
		Use:   "init --log DIR --origin NAME --key FILE|KMS",
		Short: "Make an empty log and print its verifier key",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := l.open(cmd)
			if err != nil {
				return err
			}
			vkey, err := translog.Create(l.dir, l.memory, l.origin, s)
			if err != nil {
				return failed(err, "name a new directory and a key that has signed no log; a log that lost its memory is begun anew under a new key")
			}
			fmt.Fprintln(cmd.OutOrStdout(), vkey)
			return nil
		},
	}
	l.where(cmd)
	l.writer(cmd)
	return cmd
}

func (c *commands) logAdd() *cobra.Command {
	var l logFlags
	var bundles []string
	cmd := &cobra.Command{
		Use:   "add --log DIR --origin NAME --key FILE|KMS --bundle DIR [--bundle DIR ...]",
		Short: "Add bundles to the log and write their proofs beside them",
		Long: "Adds an entry for each evidence file, unless the log has it, and writes DIR.tlog-proof beside each bundle\n" +
			"directory (DIR.tlog-proof.2 for a second signer). Exit status: 0 added, 1 the log is not as it was left, 3 error.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := l.open(cmd)
			if err != nil {
				return err
			}
			items, err := logged(bundles)
			if err != nil {
				return err
			}
			log, err := translog.Open(l.dir, l.memory, l.origin, s)
			if err != nil {
				return refused(err, "find out who changed the log or its memory; never go on over a lost memory")
			}
			var files [][]byte
			for _, i := range items {
				files = append(files, i.file)
			}
			if _, err = log.Append(files...); err != nil {
				return failed(errors.Join(err, log.Close()), "free the disk or the lock and add again")
			}
			proofs := make([]translog.Proof, len(files))
			for n, f := range files {
				if proofs[n], err = log.Prove(f); err != nil {
					return failed(errors.Join(err, log.Close()), "report this as a defect")
				}
			}
			if err := log.Close(); err != nil {
				return failed(err, "add again")
			}
			return writeProofs(cmd, items, proofs)
		},
	}
	l.where(cmd)
	l.writer(cmd)
	cmd.Flags().StringArrayVar(&bundles, "bundle", nil, "bundle directory (repeatable)")
	return cmd
}

func (c *commands) logProve() *cobra.Command {
	var l logFlags
	var bundles []string
	cmd := &cobra.Command{
		Use:   "prove --log DIR --log-key KEY --bundle DIR [--bundle DIR ...]",
		Short: "Write proofs against the present checkpoint, with the cosignatures that it has by now",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := l.trusted()
			if err != nil {
				return err
			}
			items, err := logged(bundles)
			if err != nil {
				return err
			}
			v, err := translog.Look(t, l.dir)
			if err != nil {
				return refused(err, "get the log again from whoever keeps it")
			}
			var proofs []translog.Proof
			for _, i := range items {
				p, err := v.Prove(i.file)
				if err != nil {
					return refused(err, "add the bundle with `hallmark evidence log add`")
				}
				proofs = append(proofs, p)
			}
			return writeProofs(cmd, items, proofs)
		},
	}
	l.where(cmd)
	l.trust(cmd)
	cmd.Flags().StringArrayVar(&bundles, "bundle", nil, "bundle directory (repeatable)")
	return cmd
}

func (c *commands) logCosign() *cobra.Command {
	var l logFlags
	var name string
	cmd := &cobra.Command{
		Use:   "cosign --log DIR --log-key KEY --name NAME --key FILE|KMS --memory FILE",
		Short: "Check the log as a witness and put a cosignature into its checkpoint",
		Long: "A witness says: this is the one tree of this size that I have seen, and it extends what I saw before.\n" +
			"Exit status: 0 cosigned, 1 the log is not what it was, 3 error.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.dir == "" || name == "" || l.key == "" || l.memory == "" {
				return usage("cosign needs a log, the witness's name, key and memory", "name them with --log, --name, --key and --memory")
			}
			t, err := l.trusted()
			if err != nil {
				return err
			}
			s, err := signing.Open(cmd.Context(), l.key, passphrase.Ask)
			if err != nil {
				return failed(err, remedyOfKey(err))
			}
			v, err := translog.Cosign(t, l.dir, l.memory, name, s)
			if err != nil {
				return refused(err, "ask whoever keeps the log, and tell its other witnesses")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d entries\n", t.Origin(), v.Size())
			return nil
		},
	}
	l.where(cmd)
	l.trust(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the witness")
	cmd.Flags().StringVar(&l.key, "key", "", "private key of the witness, Ed25519: a file, or SCHEME://KEY of a KMS")
	cmd.Flags().StringVar(&l.memory, "memory", "", "file with the last checkpoint that this witness saw")
	return cmd
}

func (c *commands) logFollow() *cobra.Command {
	var l logFlags
	cmd := &cobra.Command{
		Use:   "follow --log DIR --log-key KEY --memory FILE",
		Short: "Check the whole log, and that it extends what was seen before",
		Long:  "Exit status: 0 it does, 1 it forked, shrank or was rewritten, 3 error.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := l.follow()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d entries\n", v.Origin(), v.Size())
			return nil
		},
	}
	l.where(cmd)
	l.trust(cmd)
	cmd.Flags().StringVar(&l.memory, "memory", "", "file with the last checkpoint that was seen")
	return cmd
}

func (l *logFlags) follow() (*translog.View, error) {
	if l.dir == "" || l.memory == "" {
		return nil, usage("this needs a log and a memory", "name them with --log DIR and --memory FILE")
	}
	t, err := l.trusted()
	if err != nil {
		return nil, err
	}
	v, err := translog.Follow(t, l.dir, l.memory)
	if err != nil {
		return nil, refused(err, "ask whoever keeps the log, and trust nothing that it says until then")
	}
	return v, nil
}

func (c *commands) logVerify() *cobra.Command {
	var l logFlags
	var bundle string
	cmd := &cobra.Command{
		Use:   "verify --log-key KEY --bundle DIR [--log DIR --memory FILE]",
		Short: "Verify the proofs beside a bundle",
		Long: "By itself a proof shows that the log signed for this evidence. With --log and --memory the whole log is\n" +
			"checked too, and that the proof is of it and of no fork. Exit status: 0 proved, 1 not, 3 error.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if bundle == "" || (l.dir == "") != (l.memory == "") {
				return usage("verify needs a bundle, and a log only with a memory", "name them with --bundle DIR, --log DIR and --memory FILE")
			}
			items, err := logged([]string{bundle})
			if err != nil {
				return err
			}
			t, err := l.trusted()
			if err != nil {
				return err
			}
			var view *translog.View
			if l.dir != "" {
				if view, err = l.follow(); err != nil {
					return err
				}
			}
			for _, i := range items {
				p, err := translog.ReadProof(i.proof)
				if errors.Is(err, os.ErrNotExist) {
					return failed(err, "make the proof with `hallmark evidence log add` or `log prove`")
				}
				if err == nil && view != nil {
					err = view.Contains(p, i.file)
				} else if err == nil {
					_, err = p.Verify(t, i.file)
				}
				if err != nil {
					return refused(err, "get bundle and proof again from whoever made them")
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: entry %d of %s\n", i.proof, p.Index, t.Origin())
			}
			return nil
		},
	}
	l.where(cmd)
	l.trust(cmd)
	cmd.Flags().StringVar(&bundle, "bundle", "", "bundle directory")
	cmd.Flags().StringVar(&l.memory, "memory", "", "file with the last checkpoint that was seen")
	return cmd
}

// loggedFile is one evidence file and where its proof goes.
type loggedFile struct {
	file  []byte
	proof string
}

func logged(bundles []string) ([]loggedFile, error) {
	if len(bundles) == 0 {
		return nil, usage("this needs a bundle", "name it with --bundle DIR")
	}
	if err := bundlesExist(bundles); err != nil {
		return nil, err
	}
	var out []loggedFile
	for _, dir := range bundles {
		b, err := gate.ReadBundle(dir, evidence.AdmitDepth)
		if err != nil {
			return nil, refused(err, "name a bundle directory")
		}
		for _, name := range b.EvidenceFiles() {
			data, _ := b.File(name)
			out = append(out, loggedFile{data, translog.ProofPath(dir, name)})
		}
	}
	return out, nil
}

func writeProofs(cmd *cobra.Command, items []loggedFile, proofs []translog.Proof) error {
	for n, i := range items {
		if err := evidence.WriteDurable(i.proof, proofs[n].Marshal(), 0o644); err != nil {
			return failed(err, "make the folder of the bundle writable")
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: entry %d\n", i.proof, proofs[n].Index)
	}
	return nil
}

// negatives are the errors by which a log, an archive or a registry is told to be bad, and not the
// looking at it to have failed.
var negatives = []error{
	translog.ErrCheckpoint, translog.ErrProof, translog.ErrRewritten, translog.ErrMemory, translog.ErrShrunk, translog.ErrForked, translog.ErrNotLogged,
	registry.ErrManifest, registry.ErrNotSubject, registry.ErrNoEvidence,
}

// refused is exit status 1 for what is bad, 3 for the rest.
func refused(err error, remedy string) error {
	status := exit.Failed
	for _, n := range negatives {
		if errors.Is(err, n) {
			status = exit.Negative
		}
	}
	if evidence.ReasonOf(err) != "" {
		status = exit.Negative
	}
	return &exit.Error{Status: status, Sentence: err.Error(), Remedy: remedy}
}
