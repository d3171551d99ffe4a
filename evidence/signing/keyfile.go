// SPDX-License-Identifier: Apache-2.0

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
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

var (
	// ErrKeyFile means that a private key file is not usable: kind, mode or contents.
	ErrKeyFile = errors.New("private key file not usable")
	// ErrPassphrase means that a key file is encrypted and the passphrase for it is missing or wrong.
	ErrPassphrase = errors.New("passphrase of the private key missing or wrong")
)

// Types of the one PEM block in a key file. The second holds PKCS8 in the format of
// go-securesystemslib: scrypt, then NaCl secretbox. Cosign reads and writes the same.
const (
	pemType       = "PRIVATE KEY"
	encryptedType = "ENCRYPTED SIGSTORE PRIVATE KEY"
)

// Passphrase returns the passphrase of the key in a file. It is called for encrypted keys only.
type Passphrase func(path string) ([]byte, error)

// Generate makes a private key of an algorithm of package evidence in a new file at path,
// mode 0600, and its public key in publicPath. It replaces nothing.
func Generate(path, publicPath, algorithm string) (*Signer, error) {
	return generate(path, publicPath, algorithm, func(der []byte) (*pem.Block, error) {
		return &pem.Block{Type: pemType, Bytes: der}, nil
	})
}

// GenerateEncrypted is [Generate] with the private key encrypted under a passphrase of at least one
// byte. scrypt takes 128 MiB and about half a second (N = 2^17, r = 8, p = 1).
func GenerateEncrypted(path, publicPath, algorithm string, passphrase []byte) (*Signer, error) {
	if len(passphrase) == 0 {
		return nil, fmt.Errorf("make key: empty: %w", ErrPassphrase)
	}
	return generate(path, publicPath, algorithm, func(der []byte) (*pem.Block, error) {
		text, err := encrypted.EncryptWithCustomKDFParameters(der, passphrase, encrypted.OWASP)
		return &pem.Block{Type: encryptedType, Bytes: text}, err
	})
}

func generate(path, publicPath, algorithm string, block func(der []byte) (*pem.Block, error)) (*Signer, error) {
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
	b, err := block(der)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := create(path, pem.EncodeToMemory(b), 0o600); err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := create(publicPath, s.public.PEM(), 0o644); err != nil {
		return nil, fmt.Errorf("make key: %w", errors.Join(err, os.Remove(path)))
	}
	return s, nil
}

// Load reads a private key file, which must be a regular file of at most 64 KiB that nobody
// but its owner can read: one PKCS8 PEM block, not encrypted.
func Load(path string) (*Signer, error) { return load(path, nil) }

func load(path string, ask Passphrase) (*Signer, error) {
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
	if block == nil || len(bytes.TrimSpace(rest)) != 0 {
		return nil, fmt.Errorf("load key %s: one %s block wanted: %w", path, pemType, ErrKeyFile)
	}
	der := block.Bytes
	switch block.Type {
	case pemType:
	case encryptedType:
		if der, err = decrypt(path, der, ask); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("load key %s: block %q: %w", path, block.Type, ErrKeyFile)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("load key %s: %w", path, ErrKeyFile)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("load key %s: %T cannot sign: %w", path, key, ErrKeyFile)
	}
	return New(signer)
}

func decrypt(path string, text []byte, ask Passphrase) ([]byte, error) {
	if ask == nil {
		return nil, fmt.Errorf("load key %s: it is encrypted: %w", path, ErrPassphrase)
	}
	passphrase, err := ask(path)
	if err != nil {
		return nil, fmt.Errorf("load key %s: %w: %w", path, ErrPassphrase, err)
	}
	der, err := encrypted.Decrypt(text, passphrase)
	if err != nil {
		// The library does not tell a wrong passphrase from changed bytes: secretbox cannot.
		return nil, fmt.Errorf("load key %s: %w", path, ErrPassphrase)
	}
	return der, nil
}
