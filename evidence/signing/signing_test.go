// SPDX-License-Identifier: Apache-2.0

package signing_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

func TestKeysSignAndVerify(t *testing.T) {
	for _, algorithm := range []string{evidence.Ed25519, evidence.ECDSAP256} {
		dir := t.TempDir()
		path, public := filepath.Join(dir, "a.key"), filepath.Join(dir, "a.pub")
		made, err := signing.Generate(path, public, algorithm)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: private key has mode %v (%v)", algorithm, info.Mode(), err)
		}
		s, err := signing.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(public)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := evidence.ParsePublicKeysPEM(text)
		if err != nil || len(keys) != 1 {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		if keys[0].Digest() != made.PublicKey().Digest() || keys[0].Algorithm() != algorithm {
			t.Errorf("%s: read back as %s %s", algorithm, keys[0].Algorithm(), keys[0].Digest())
		}
		message := []byte("message")
		sig, err := s.Sign(message)
		if err != nil {
			t.Fatal(err)
		}
		if !keys[0].Verify(message, sig) {
			t.Errorf("%s: own signature refused", algorithm)
		}
		for i := range sig {
			bad := append([]byte(nil), sig...)
			bad[i] ^= 0x10
			if keys[0].Verify(message, bad) {
				t.Errorf("%s: signature with byte %d changed accepted", algorithm, i)
			}
		}
		if keys[0].Verify([]byte("other"), sig) || keys[0].Verify(message, nil) {
			t.Errorf("%s: accepted for another message, or empty", algorithm)
		}
		if _, err := signing.Generate(path, public, algorithm); !errors.Is(err, os.ErrExist) {
			t.Errorf("%s: a key was replaced: %v", algorithm, err)
		}
	}
}

func TestKeyFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.key")
	if _, err := signing.Generate(path, path+".pub", evidence.Ed25519); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		data []byte
		mode os.FileMode
	}{
		"readable by others": {text, 0o644}, "not PEM": {[]byte("key"), 0o600}, "two blocks": {append(text, text...), 0o600},
	} {
		p := filepath.Join(dir, "b.key")
		if err := os.WriteFile(p, tt.data, tt.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, tt.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := signing.Load(p); !errors.Is(err, signing.ErrKeyFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := signing.Generate(filepath.Join(dir, "c.key"), filepath.Join(dir, "c.pub"), "rsa"); err == nil {
		t.Error("an RSA key was made")
	}
	k, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signing.New(k); !errors.Is(err, evidence.ErrKey) {
		t.Errorf("P-384: %v", err)
	}
}

func TestEncryptedKeys(t *testing.T) {
	dir := t.TempDir()
	secret := make([]byte, 16)
	rand.Read(secret)
	ask := func(p []byte) signing.Passphrase { return func(string) ([]byte, error) { return p, nil } }
	for _, algorithm := range []string{evidence.Ed25519, evidence.ECDSAP256} {
		path := filepath.Join(dir, algorithm+".key")
		made, err := signing.GenerateEncrypted(path, path+".pub", algorithm, secret)
		if err != nil {
			t.Fatal(err)
		}
		s, err := signing.Open(t.Context(), path, ask(secret))
		if err != nil || s.PublicKey().Digest() != made.PublicKey().Digest() {
			t.Fatalf("%s: %v", algorithm, err)
		}
		if _, err := s.Sign([]byte("message")); err != nil {
			t.Error(err)
		}
		_, err = signing.Load(path)
		for name, err := range map[string]error{
			"no passphrase":    err,
			"another":          second(signing.Open(t.Context(), path, ask([]byte("other")))),
			"empty":            second(signing.Open(t.Context(), path, ask(nil))),
			"none to be asked": second(signing.Open(t.Context(), path, func(string) ([]byte, error) { return nil, errors.New("no terminal") })),
		} {
			if !errors.Is(err, signing.ErrPassphrase) {
				t.Errorf("%s, %s: %v", algorithm, name, err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// Sigstore's own reader opens it.
		key, err := cryptoutils.UnmarshalPEMToPrivateKey(text, func(bool) ([]byte, error) { return secret, nil })
		if err != nil {
			t.Fatal(err)
		}
		other, err := signing.New(key.(crypto.Signer))
		if err != nil || other.PublicKey().Digest() != made.PublicKey().Digest() {
			t.Errorf("%s: another key, %v", algorithm, err)
		}
		block, _ := pem.Decode(text)
		if strings.Contains(string(block.Bytes), string(secret)) {
			t.Error("the passphrase is in the file")
		}
		at := bytes.Index(block.Bytes, []byte(`"ciphertext":"`)) + 40
		block.Bytes[at] ^= 2
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := signing.Open(t.Context(), path, ask(secret)); !errors.Is(err, signing.ErrPassphrase) {
			t.Errorf("%s: changed: %v", algorithm, err)
		}
	}
	if _, err := signing.GenerateEncrypted(filepath.Join(dir, "none.key"), filepath.Join(dir, "none.pub"), evidence.Ed25519, nil); !errors.Is(err, signing.ErrPassphrase) {
		t.Errorf("encrypted under nothing: %v", err)
	}
}

// A key that sigstore's tools made is one of ours.
func TestKeysOfSigstoreAreRead(t *testing.T) {
	secret := make([]byte, 16)
	rand.Read(secret)
	text, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), func(bool) ([]byte, error) { return secret, nil })
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cosign.key")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := signing.Open(t.Context(), path, func(string) ([]byte, error) { return secret, nil })
	if err != nil || s.PublicKey().Algorithm() != evidence.ECDSAP256 {
		t.Errorf("%v", err)
	}
}

func second[T any](_ T, err error) error { return err }
