// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Accepts is nil when sigstore-go accepts one bundle file under key for an artifact with this
// digest ("sha256:" and 64 hex digits). Like a command line that takes one public key, it uses the
// key whatever hint the bundle gives; no timestamp and no log entry is asked for.
func Accepts(file []byte, key evidence.PublicKey, digest string) error {
	public, err := x509.ParsePKIXPublicKey(key.SPKI())
	if err != nil {
		return fmt.Errorf("public key: %w", err)
	}
	verifier, err := signature.LoadVerifier(public, crypto.SHA256)
	if err != nil {
		return fmt.Errorf("public key: %w", err)
	}
	material := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return root.NewExpiringKey(verifier, time.Time{}, time.Time{}), nil
	})
	v, err := verify.NewVerifier(material, verify.WithNoObserverTimestamps())
	if err != nil {
		return fmt.Errorf("make verifier: %w", err)
	}
	sum, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	var b bundle.Bundle
	if err := b.UnmarshalJSON(file); err != nil {
		return fmt.Errorf("read bundle: %w", err)
	}
	_, err = v.Verify(&b, verify.NewPolicy(verify.WithArtifactDigest("sha256", sum), verify.WithKey()))
	return err
}

// AcceptsDir is [Accepts] for the first evidence file of a bundle directory, under whichever of the
// keys accepts it.
func AcceptsDir(dir string, keys []evidence.PublicKey, digest string) error {
	file, err := os.ReadFile(filepath.Join(dir, evidence.EvidenceFile))
	if err != nil {
		return err
	}
	var all []error
	for _, k := range keys {
		err := Accepts(file, k, digest)
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
