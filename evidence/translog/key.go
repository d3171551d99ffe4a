// SPDX-License-Identifier: Apache-2.0

package translog

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ErrKey means that a key cannot be that of a log or of a witness: both are Ed25519 keys with a name.
var ErrKey = errors.New("not the key of a log or witness")

// Signature types of C2SP signed-note.
const (
	typeNote        = 1
	typeCosignature = 4
)

// key is a crypto.Signer with an evidence signer behind it, or, without one, a public key only.
type key struct {
	public ed25519.PublicKey
	signer evidence.Signer
}

func newKey(s evidence.Signer) (key, error) {
	public, err := x509.ParsePKIXPublicKey(s.PublicKey().SPKI())
	if err != nil {
		return key{}, fmt.Errorf("%w: %w", ErrKey, err)
	}
	ed, ok := public.(ed25519.PublicKey)
	if !ok {
		return key{}, fmt.Errorf("%w: algorithm %s", ErrKey, s.PublicKey().Algorithm())
	}
	return key{ed, s}, nil
}

func (k key) Public() crypto.PublicKey { return k.public }

func (k key) Sign(_ io.Reader, message []byte, _ crypto.SignerOpts) ([]byte, error) {
	if k.signer == nil {
		return nil, fmt.Errorf("%w: no private key", ErrKey)
	}
	return k.signer.Sign(message)
}

// logSigner signs checkpoints as their log.
type logSigner struct {
	note.Verifier
	key  key
	vkey string
}

func (s logSigner) Sign(message []byte) ([]byte, error) { return s.key.signer.Sign(message) }

func newLogSigner(origin string, s evidence.Signer) (logSigner, error) {
	k, err := newKey(s)
	if err != nil {
		return logSigner{}, err
	}
	vkey, err := note.NewEd25519VerifierKey(origin, k.public)
	if err != nil {
		return logSigner{}, fmt.Errorf("%w: origin %q: %w", ErrKey, origin, err)
	}
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return logSigner{}, fmt.Errorf("%w: origin %q: %w", ErrKey, origin, err)
	}
	return logSigner{v, k, vkey}, nil
}

// LogVerifierKey is the verifier key of a log, "<origin>+<hash>+<key>".
func LogVerifierKey(origin string, s evidence.Signer) (string, error) {
	l, err := newLogSigner(origin, s)
	return l.vkey, err
}

// WitnessVerifierKey is the verifier key of a witness, "<name>+<hash>+<key>".
func WitnessVerifierKey(name string, s evidence.Signer) (string, error) {
	w, err := newWitness(name, s)
	if err != nil {
		return "", err
	}
	return w.Verifier().String(), nil
}

func newWitness(name string, s evidence.Signer) (*torchwood.CosignatureSigner, error) {
	k, err := newKey(s)
	if err != nil {
		return nil, err
	}
	w, err := torchwood.NewCosignatureSigner(name, k)
	if err != nil {
		return nil, fmt.Errorf("%w: name %q: %w", ErrKey, name, err)
	}
	return w, nil
}

// parse reads a verifier key of one of the two types.
func parse(vkey string, kind byte) (note.Verifier, ed25519.PublicKey, error) {
	name, rest, _ := strings.Cut(vkey, "+")
	_, text, ok := strings.Cut(rest, "+")
	raw, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(raw) != 1+ed25519.PublicKeySize {
		return nil, nil, fmt.Errorf("%w: %q", ErrKey, vkey)
	}
	public := ed25519.PublicKey(bytes.Clone(raw[1:]))
	switch {
	case raw[0] != kind:
		return nil, nil, fmt.Errorf("%w: %q is of type %d, not %d", ErrKey, vkey, raw[0], kind)
	case kind == typeCosignature:
		w, err := torchwood.NewCosignatureSigner(name, key{public: public})
		if err != nil || w.Verifier().String() != vkey {
			return nil, nil, fmt.Errorf("%w: %q", ErrKey, vkey)
		}
		return w.Verifier(), public, nil
	}
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %q: %w", ErrKey, vkey, err)
	}
	return v, public, nil
}
