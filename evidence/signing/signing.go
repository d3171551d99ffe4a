// SPDX-License-Identifier: Apache-2.0

// Package signing makes keys and signatures for package evidence.
//
// It owns private keys in files (PKCS8 PEM, mode 0600) and the use of the sigstore signer,
// which is where a key of a KMS would come in. It never verifies evidence, and nothing on a
// worker's admission path imports it.
package signing

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ErrKeyFile means that a private key file is not usable: kind, mode or contents.
var ErrKeyFile = errors.New("private key file not usable")

const pemType = "PRIVATE KEY"

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

// Sign signs message: PureEdDSA, or ECDSA over its SHA-256.
func (s *Signer) Sign(message []byte) ([]byte, error) {
	sig, err := s.signer.SignMessage(bytes.NewReader(message))
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
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

// Generate makes a private key of an algorithm of package evidence in a new file at path,
// mode 0600, and its public key in path with ".pub" for a suffix. It replaces nothing.
func Generate(path, publicPath, algorithm string) (*Signer, error) {
	var key crypto.Signer
	var err error
	switch algorithm {
	case evidence.Ed25519:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case evidence.ECDSAP256:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		err = fmt.Errorf("algorithm %q", algorithm)
	}
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	s, err := New(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})
	if err := create(path, text, 0o600); err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := create(publicPath, s.public.PEM(), 0o644); err != nil {
		return nil, fmt.Errorf("make key: %w", errors.Join(err, os.Remove(path)))
	}
	return s, nil
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

// Load reads a private key file, which must be a regular file of at most 64 KiB that nobody
// but its owner can read: one PKCS8 PEM block.
func Load(path string) (*Signer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > 64<<10 || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("load key %s with mode %s: %w", path, info.Mode(), ErrKeyFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != pemType || len(bytes.TrimSpace(rest)) != 0 {
		return nil, fmt.Errorf("load key %s: one %s block wanted: %w", path, pemType, ErrKeyFile)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("load key %s: %w", path, ErrKeyFile)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("load key %s: %T cannot sign: %w", path, key, ErrKeyFile)
	}
	return New(signer)
}
