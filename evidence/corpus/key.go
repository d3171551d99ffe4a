// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// key is a throw-away key that can be made to sign wrongly.
type key struct {
	private crypto.Signer
	public  evidence.PublicKey
}

func newKey(private crypto.Signer, err error) (key, error) {
	if err != nil {
		return key{}, fmt.Errorf("make throw-away key: %w", err)
	}
	public, err := evidence.NewPublicKey(private.Public(), nil)
	return key{private, public}, err
}

func newEd25519() (key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	return newKey(private, err)
}

func newECDSA() (key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return newKey(private, err)
}

// PublicKey and Sign make key an evidence.Signer.
func (k key) PublicKey() evidence.PublicKey { return k.public }

func (k key) Sign(message []byte) ([]byte, error) {
	if _, ok := k.private.(ed25519.PrivateKey); ok {
		return k.private.Sign(rand.Reader, message, crypto.Hash(0))
	}
	h := sha256.Sum256(message)
	return k.private.Sign(rand.Reader, h[:], crypto.SHA256)
}

func (k key) pem() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return nil, fmt.Errorf("encode throw-away key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ring is everybody who signs in a corpus. Only the first four are in every row's policy.
type ring struct {
	root, evidence, gate, mutation       key
	second, implementer, ecdsa, stranger key
	log, witness                         key
}

func newRing() (ring, error) {
	var r ring
	for _, k := range []*key{&r.root, &r.evidence, &r.gate, &r.mutation, &r.second, &r.implementer, &r.stranger, &r.log, &r.witness} {
		made, err := newEd25519()
		if err != nil {
			return r, err
		}
		*k = made
	}
	var err error
	r.ecdsa, err = newECDSA()
	return r, err
}
