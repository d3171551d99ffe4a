// SPDX-License-Identifier: Apache-2.0

// Package signing makes keys and signatures for package evidence.
//
// It owns private keys in files of mode 0600 (PKCS8 PEM; encrypted, sigstore's PEM format) and the
// use of sigstore's signers, those of a KMS among them. It never verifies evidence, and nothing on a
// worker's admission path imports it.
//
// [Open] takes whatever names a key, [Load] the path of a file that is not encrypted.
package signing

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Signer signs with one private key. It is safe for concurrent use.
type Signer struct {
	signer signature.Signer
	public evidence.PublicKey
}

// New wraps an Ed25519 or ECDSA P-256 private key.
func New(key crypto.Signer) (*Signer, error) {
	public, err := evidence.NewPublicKey(key.Public(), nil)
	if err != nil {
		return nil, fmt.Errorf("signer: %w", err)
	}
	s, err := signature.LoadSigner(key, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("signer: %w", err)
	}
	return &Signer{signer: s, public: public}, nil
}

// PublicKey returns the verification key.
func (s *Signer) PublicKey() evidence.PublicKey { return s.public }

// signTimeout bounds one signature: a KMS is asked over a network.
const signTimeout = time.Minute

// Sign signs message: PureEdDSA, or ECDSA over its SHA-256. A signature that the public key does not
// verify is an error and never returned, whoever made it.
func (s *Signer) Sign(message []byte) ([]byte, error) {
	ctx, stop := context.WithTimeout(context.Background(), signTimeout)
	defer stop()
	sig, err := s.signer.SignMessage(bytes.NewReader(message), options.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	if !s.public.Verify(message, sig) {
		return nil, fmt.Errorf("sign: the signature does not verify under the public key %s", s.public.Digest())
	}
	return sig, nil
}

// Throwaway returns a signer with a new Ed25519 key that is nowhere else.
func Throwaway() (*Signer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return New(key)
}

func create(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
