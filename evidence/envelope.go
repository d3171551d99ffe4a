// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Types that name formats.
const (
	BundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	InTotoType      = "application/vnd.in-toto+json"
	PolicyType      = "application/vnd.hallmark.trust-policy.v1+json"
)

// MaxPayload bounds a payload in bytes; its base64 form is a third longer.
const MaxPayload = 8 << 20

var (
	payloadLimits  = strictjson.Limits{Bytes: MaxPayload, Depth: 16, StringBytes: 1 << 20}
	envelopeLimits = strictjson.Limits{Bytes: 12 << 20, Depth: 8, StringBytes: 12 << 20}
)

// Envelope is a DSSE envelope. Trust policies, pins and mutation statements are files that
// hold just one; an evidence bundle wraps it in [SigstoreBundle].
type Envelope struct {
	Payload     []byte      `json:"payload"`
	PayloadType string      `json:"payloadType"`
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature over the PAE. KeyID is the key's hint in plain envelopes and
// absent in a Sigstore bundle, whose verification material holds the hint.
type Signature struct {
	Sig   []byte `json:"sig"`
	KeyID string `json:"keyid,omitempty"`
}

// SigstoreBundle is the part of Sigstore bundle v0.3 that we write and accept. A certificate,
// a message signature or a log entry is an unknown member, and refused.
type SigstoreBundle struct {
	MediaType            string               `json:"mediaType"`
	VerificationMaterial VerificationMaterial `json:"verificationMaterial"`
	DSSEEnvelope         Envelope             `json:"dsseEnvelope"`
}

// VerificationMaterial names the key by its hint.
type VerificationMaterial struct {
	PublicKey PublicKeyIdentifier `json:"publicKey"`
}

// PublicKeyIdentifier holds base64(sha256(SPKI)).
type PublicKeyIdentifier struct {
	Hint string `json:"hint"`
}

// SealEnvelope signs payload and returns the bytes of an envelope file.
func SealEnvelope(payloadType string, payload []byte, s Signer) ([]byte, error) {
	sig, err := s.Sign(PAE(payloadType, payload))
	if err != nil {
		return nil, fmt.Errorf("sign envelope: %w", err)
	}
	return strictjson.Marshal(Envelope{
		Payload: payload, PayloadType: payloadType,
		Signatures: []Signature{{Sig: sig, KeyID: s.PublicKey().Hint()}},
	})
}

// SealBundle signs payload and returns the bytes of a Sigstore bundle file.
func SealBundle(payload []byte, s Signer) ([]byte, error) {
	sig, err := s.Sign(PAE(InTotoType, payload))
	if err != nil {
		return nil, fmt.Errorf("sign bundle: %w", err)
	}
	return strictjson.Marshal(SigstoreBundle{
		MediaType:            BundleMediaType,
		VerificationMaterial: VerificationMaterial{PublicKey: PublicKeyIdentifier{Hint: s.PublicKey().Hint()}},
		DSSEEnvelope:         Envelope{Payload: payload, PayloadType: InTotoType, Signatures: []Signature{{Sig: sig}}},
	})
}

// openEnvelope verifies an envelope file against keys chosen by hint and returns its payload.
// Errors are *Denied with ReasonBundleJSON and the like; callers map them to their own.
func openEnvelope(data []byte, payloadType string, keyOf func(hint string) (PublicKey, bool)) ([]byte, PublicKey, error) {
	var e Envelope
	if err := decodeCanonical(data, &e); err != nil {
		return nil, PublicKey{}, err
	}
	if len(e.Signatures) != 1 {
		return nil, PublicKey{}, deny(ReasonSignatureCount, "%d signatures", len(e.Signatures))
	}
	if e.PayloadType != payloadType {
		return nil, PublicKey{}, deny(ReasonPayloadType, "%q", e.PayloadType)
	}
	key, ok := keyOf(e.Signatures[0].KeyID)
	if !ok {
		return nil, PublicKey{}, deny(ReasonKeyUnknown, "hint %q", e.Signatures[0].KeyID)
	}
	if !key.Verify(PAE(e.PayloadType, e.Payload), e.Signatures[0].Sig) {
		return nil, PublicKey{}, deny(ReasonSignature, "key %s", key.Digest())
	}
	return e.Payload, key, nil
}

// decodeCanonical decodes a bundle or envelope whose bytes must be our own encoding, so that
// no byte is outside what is checked.
func decodeCanonical(data []byte, v any) error {
	switch err := strictjson.Unmarshal(data, v, envelopeLimits); {
	case errors.Is(err, strictjson.ErrEncoded):
		return deny(ReasonBase64, "%v", err)
	case err != nil:
		return deny(ReasonBundleJSON, "%v", err)
	}
	again, err := strictjson.Marshal(v)
	if err != nil || !bytes.Equal(again, data) {
		return deny(ReasonBundleCanonical, "%d bytes, canonical %d", len(data), len(again))
	}
	return nil
}

// Denied is a refusal with its stable code.
type Denied struct {
	Reason Reason
	Detail string
}

func (d *Denied) Error() string {
	if d.Detail == "" {
		return string(d.Reason) + ": " + d.Reason.Sentence()
	}
	return string(d.Reason) + ": " + d.Reason.Sentence() + " (" + d.Detail + ")"
}

func deny(r Reason, format string, args ...any) error {
	return &Denied{Reason: r, Detail: fmt.Sprintf(format, args...)}
}

// ReasonOf returns the code of the first *Denied in err's chain, or "".
func ReasonOf(err error) Reason {
	var d *Denied
	if errors.As(err, &d) {
		return d.Reason
	}
	return ""
}

// recode gives every refusal in err another code and keeps the old one as detail.
func recode(err error, r Reason) error {
	if err == nil {
		return nil
	}
	var d *Denied
	if errors.As(err, &d) {
		return deny(r, "%s: %s", d.Reason, d.Detail)
	}
	return deny(r, "%v", err)
}
