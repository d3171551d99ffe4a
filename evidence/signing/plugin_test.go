// SPDX-License-Identifier: Apache-2.0

package signing_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/handler"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

const pluginScheme = "hallmarktest"

// TestMain makes this program a plugin of sigstore when it is called by the name of one: a KMS whose
// key's name is the path of a key file.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "sigstore-kms-"+pluginScheme {
		if err := plugin(); err != nil {
			log.Fatal(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func plugin() error {
	args, err := handler.GetPluginArgs(os.Args)
	if err != nil {
		return handler.WriteErrorResponse(os.Stdout, err)
	}
	text, err := os.ReadFile(args.InitOptions.KeyResourceID)
	if err != nil {
		return handler.WriteErrorResponse(os.Stdout, err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return handler.WriteErrorResponse(os.Stdout, err)
	}
	sv, err := signature.LoadSignerVerifier(key, crypto.SHA256)
	if err != nil {
		return handler.WriteErrorResponse(os.Stdout, err)
	}
	_, err = handler.Dispatch(os.Stdout, os.Stdin, args, remote{sv})
	return err
}

// remote is the part of a KMS that signing asks for.
type remote struct{ signature.SignerVerifier }

func (remote) DefaultAlgorithm() string      { return "" }
func (remote) SupportedAlgorithms() []string { return nil }

func (remote) CreateKey(context.Context, string) (crypto.PublicKey, error) {
	return nil, errors.ErrUnsupported
}

func (remote) CryptoSigner(context.Context, func(error)) (crypto.Signer, crypto.SignerOpts, error) {
	return nil, nil, errors.ErrUnsupported
}

var _ kms.SignerVerifier = remote{}

// A KMS that is a program on PATH signs, in a process of its own.
func TestKMSThatIsAPlugin(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "sigstore-kms-"+pluginScheme)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, algorithm := range []string{evidence.Ed25519, evidence.ECDSAP256} {
		path := filepath.Join(dir, algorithm)
		made, err := signing.Generate(path, path+".pub", algorithm)
		if err != nil {
			t.Fatal(err)
		}
		s, err := signing.Open(t.Context(), pluginScheme+"://"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s.PublicKey().Digest() != made.PublicKey().Digest() {
			t.Errorf("%s: another key", algorithm)
		}
		file, err := evidence.SealEnvelope("text/plain", []byte("payload"), s)
		if err != nil || !strings.Contains(string(file), made.PublicKey().Hint()) {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
	if _, err := signing.Open(t.Context(), fmt.Sprintf("%s://%s", pluginScheme, filepath.Join(dir, "none")), nil); !errors.Is(err, signing.ErrKMS) {
		t.Errorf("no such key: %v", err)
	}
}
