// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/passphrase"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/evidence/translog"
)

func (c *commands) keygen() *cobra.Command {
	var out, algorithm string
	var encrypt bool
	cmd := &cobra.Command{
		Use:   "keygen --out FILE",
		Short: "Make a signing key (PEM, mode 0600) and its public half",
		Long: "Makes a private key: PKCS8, or with --encrypt the encrypted format of sigstore and cosign. The passphrase\n" +
			"is read from the file that " + passphrase.File + " names, or else asked for on the terminal; every\n" +
			"command that uses the key gets it in the same way.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return usage("keygen needs an output file", "name it with --out FILE")
			}
			s, err := generate(out, algorithm, encrypt)
			if errors.Is(err, errNoPassphrase) {
				return failed(err, passphrase.ErrNone.Error())
			}
			if err != nil {
				return failed(err, "name a new file, and ed25519 or ecdsa-p256 as algorithm")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n%s\n", out, gate.PublicPath(out), s.PublicKey().Digest())
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "private key to write; the public one gets .pub")
	cmd.Flags().StringVar(&algorithm, "algorithm", evidence.Ed25519, "ed25519 or ecdsa-p256")
	cmd.Flags().BoolVar(&encrypt, "encrypt", false, "encrypt the private key under a passphrase")
	return cmd
}

var errNoPassphrase = errors.New("no passphrase for the new key")

func generate(out, algorithm string, encrypt bool) (*signing.Signer, error) {
	if !encrypt {
		return signing.Generate(out, gate.PublicPath(out), algorithm)
	}
	secret, err := passphrase.New(out)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPassphrase, err)
	}
	return signing.GenerateEncrypted(out, gate.PublicPath(out), algorithm, secret)
}

// publicKey prints what verifiers need of a key, wherever its private half lies.
func (c *commands) publicKey() *cobra.Command {
	var key, log, witness string
	var digest bool
	cmd := &cobra.Command{
		Use:   "public-key --key FILE|KMS",
		Short: "Print the public half of a key: PEM, its digest, or the verifier key of a log or witness",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if key == "" || log != "" && witness != "" || digest && log+witness != "" {
				return usage("public-key needs a key, and one form at most", "name the key with --key FILE or --key SCHEME://KEY")
			}
			s, err := signing.Open(cmd.Context(), key, passphrase.Ask)
			if err != nil {
				return failed(err, remedyOfKey(err))
			}
			text := string(s.PublicKey().PEM())
			switch {
			case digest:
				text = s.PublicKey().Digest() + "\n"
			case log != "":
				text, err = translog.LogVerifierKey(log, s)
				text += "\n"
			case witness != "":
				text, err = translog.WitnessVerifierKey(witness, s)
				text += "\n"
			}
			if err != nil {
				return failed(err, "use an Ed25519 key, and a name without spaces and plus signs")
			}
			fmt.Fprint(cmd.OutOrStdout(), text)
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "private key file, or a key of a KMS as SCHEME://KEY")
	cmd.Flags().BoolVar(&digest, "digest", false, "print the digest by which trust policies name the key")
	cmd.Flags().StringVar(&log, "log", "", "print the verifier key of the log with this origin")
	cmd.Flags().StringVar(&witness, "witness", "", "print the verifier key of the witness with this name")
	return cmd
}

// remedyOfKey suggests what to do about a private key that cannot be used.
func remedyOfKey(err error) string {
	switch {
	case errors.Is(err, signing.ErrPassphrase):
		return passphrase.ErrNone.Error()
	case errors.Is(err, signing.ErrKMS):
		return "put the program sigstore-kms-SCHEME of that KMS on PATH, and use an Ed25519 or ECDSA P-256 key"
	}
	return remedyOf(err)
}
