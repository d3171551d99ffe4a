// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"crypto/ed25519"
	"errors"

	"github.com/golang-jwt/jwt/v5"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// maxStatement bounds a receipt or health statement in bytes of its compact form.
const maxStatement = 32 << 10

var statementLimits = strictjson.Limits{Bytes: maxStatement, Depth: 8, StringBytes: 4096}

// Signer signs the worker's own statements.
type Signer struct {
	key ed25519.PrivateKey
	kid string
}

// NewSigner takes the worker's key.
func NewSigner(key ed25519.PrivateKey) (*Signer, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("signer: no Ed25519 key")
	}
	return &Signer{key: key, kid: KeyID(key.Public().(ed25519.PublicKey))}, nil
}

// Receipt signs r as a binding receipt.
func (s *Signer) Receipt(r api.Receipt) (string, error) { return Sign(s.key, s.kid, TypeReceipt, r) }

// Health signs h, which holds the client's challenge.
func (s *Signer) Health(h api.Health) (string, error) { return Sign(s.key, s.kid, TypeHealth, h) }

// VerifyReceipt returns what a receipt says under the worker's key; comparing the fields is the
// client's part. A refusal is BINDING_RECEIPT_INVALID.
func VerifyReceipt(pub ed25519.PublicKey, token string) (api.Receipt, error) {
	var r api.Receipt
	if err := verifyStatement(pub, token, TypeReceipt, &r); err != nil {
		return api.Receipt{}, api.E(api.BindingReceiptInvalid, err)
	}
	return r, nil
}

// VerifyHealth returns a health statement over challenge. A refusal is RESPONSE_INVALID.
func VerifyHealth(pub ed25519.PublicKey, token, challenge string) (api.Health, error) {
	var h api.Health
	if err := verifyStatement(pub, token, TypeHealth, &h); err != nil {
		return api.Health{}, api.E(api.ResponseInvalid, err)
	}
	if h.Challenge != challenge {
		return api.Health{}, api.E(api.ResponseInvalid, errors.New("health answers another challenge"))
	}
	return h, nil
}

func verifyStatement(pub ed25519.PublicKey, token, typ string, out any) error {
	if err := checkShape(token, maxStatement); err != nil {
		return err
	}
	keys := []Key{{ID: KeyID(pub), Public: pub}}
	if _, err := verifySignature(token, keys, jwt.WithoutClaimsValidation()); err != nil {
		return err
	}
	return decodeExact(token, typ, out, statementLimits)
}
