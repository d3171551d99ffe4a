// SPDX-License-Identifier: Apache-2.0

package signing_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"

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
