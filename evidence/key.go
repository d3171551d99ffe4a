// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strconv"
)

// Algorithms of a key. The policy names the algorithm; evidence never does.
const (
	Ed25519   = "ed25519"    // RFC 8032 PureEdDSA; Ed25519ph and Ed25519ctx are refused
	ECDSAP256 = "ecdsa-p256" // with SHA-256, ASN.1 signature
)

// ErrKey means that a key is not one of the two algorithms in its canonical encoding.
var ErrKey = errors.New("key not usable")

// PublicKey is a verification key. The zero value verifies nothing.
type PublicKey struct {
	algorithm string
	spki      []byte // DER SubjectPublicKeyInfo
	ed        ed25519.PublicKey
	ec        *ecdsa.PublicKey
}

// ParsePublicKey reads a DER SubjectPublicKeyInfo, which must be its own re-encoding.
func ParsePublicKey(spki []byte) (PublicKey, error) {
	k, err := x509.ParsePKIXPublicKey(spki)
	if err != nil {
		return PublicKey{}, fmt.Errorf("parse public key: %w", ErrKey)
	}
	return NewPublicKey(k, spki)
}

// NewPublicKey wraps an ed25519.PublicKey or a P-256 *ecdsa.PublicKey. want may be nil.
func NewPublicKey(key any, want []byte) (PublicKey, error) {
	p := PublicKey{}
	switch k := key.(type) {
	case ed25519.PublicKey:
		p.algorithm, p.ed = Ed25519, k
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return PublicKey{}, fmt.Errorf("curve %s: %w", k.Params().Name, ErrKey)
		}
		p.algorithm, p.ec = ECDSAP256, k
	default:
		return PublicKey{}, fmt.Errorf("type %T: %w", key, ErrKey)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil || (want != nil && !bytes.Equal(der, want)) {
		return PublicKey{}, fmt.Errorf("encoding of public key: %w", ErrKey)
	}
	p.spki = der
	return p, nil
}

// ParsePublicKeysPEM reads one or more "PUBLIC KEY" blocks and nothing else.
func ParsePublicKeysPEM(text []byte) ([]PublicKey, error) {
	var keys []PublicKey
	for rest := text; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			if len(bytes.TrimSpace(rest)) != 0 || len(keys) == 0 {
				return nil, fmt.Errorf("public key file: %w", ErrKey)
			}
			return keys, nil
		}
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("PEM block %q: %w", block.Type, ErrKey)
		}
		k, err := ParsePublicKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
}

// PEM returns the key as a "PUBLIC KEY" block.
func (k PublicKey) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: k.spki})
}

// Algorithm returns [Ed25519] or [ECDSAP256].
func (k PublicKey) Algorithm() string { return k.algorithm }

// SPKI returns the DER encoding.
func (k PublicKey) SPKI() []byte { return bytes.Clone(k.spki) }

// Digest returns the digest of the SPKI.
func (k PublicKey) Digest() string { return Digest(k.spki) }

// Hint returns base64(sha256(SPKI)), as bundles and envelopes name a key.
func (k PublicKey) Hint() string {
	s := sha256.Sum256(k.spki)
	return base64.StdEncoding.EncodeToString(s[:])
}

// Verify says whether sig is k's signature of message.
func (k PublicKey) Verify(message, sig []byte) bool {
	switch k.algorithm {
	case Ed25519:
		return len(sig) == ed25519.SignatureSize && ed25519.Verify(k.ed, message, sig)
	case ECDSAP256:
		h := sha256.Sum256(message)
		return ecdsa.VerifyASN1(k.ec, h[:], sig)
	}
	return false
}

// twinSignature returns the ASN.1 form of (r, n-s) for that of an ECDSA P-256 signature (r, s), SEC 1 section 4.1.3.
func twinSignature(sig []byte) ([]byte, error) {
	var rs struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(sig, &rs); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("signature: %w", ErrKey)
	}
	rs.S.Sub(elliptic.P256().Params().N, rs.S)
	return asn1.Marshal(rs)
}

// Signer makes signatures; package evidence/signing has one for key files.
type Signer interface {
	PublicKey() PublicKey
	Sign(message []byte) ([]byte, error)
}

// PAE is the DSSE pre-authentication encoding, DSSE v1.0.0 section "Signature Definition".
// It is spelled out here because the library that signing uses links an SSH stack, which the
// worker must not; a test holds both against each other.
func PAE(payloadType string, payload []byte) []byte {
	b := make([]byte, 0, len(payload)+len(payloadType)+40)
	b = append(b, "DSSEv1 "...)
	b = strconv.AppendInt(b, int64(len(payloadType)), 10)
	b = append(append(append(b, ' '), payloadType...), ' ')
	b = strconv.AppendInt(b, int64(len(payload)), 10)
	return append(append(b, ' '), payload...)
}
