// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Values of the typ header member (RFC 7515, section 4.1.9).
const (
	TypeCapability = "hallmark-capability+jwt"
	TypeReceipt    = "hallmark-receipt+jws"
	TypeHealth     = "hallmark-health+jws"
)

const algorithm = "EdDSA"

// header is exact: no crit, no jwk, no x5u, nothing optional.
type header struct {
	Alg string `json:"alg"`
	Kid string `json:"kid"`
	Typ string `json:"typ"`
}

// Key is a public key and the id under which it is configured.
type Key struct {
	ID     string
	Public ed25519.PublicKey
}

// KeyID is the id of a worker's own key: the sha256 of the 32 raw bytes, in hex.
func KeyID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return hex.EncodeToString(sum[:])
}

// ParsePrivateKey reads an Ed25519 key from one PEM block of PKCS #8 (RFC 5958).
func ParsePrivateKey(text []byte) (ed25519.PrivateKey, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("not one PEM block of type PRIVATE KEY")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse PKCS #8: %w", err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("not an Ed25519 key")
	}
	return key, nil
}

// Sign writes payload as a compact JWS of the given typ. It does not look into payload.
func Sign(key ed25519.PrivateKey, kid, typ string, payload any) (string, error) {
	h, err := strictjson.Marshal(header{Alg: algorithm, Kid: kid, Typ: typ})
	if err != nil {
		return "", err
	}
	p, err := strictjson.Marshal(payload)
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(p)
	sig, err := jwt.SigningMethodEdDSA.Sign(text, key)
	if err != nil {
		return "", fmt.Errorf("sign %s: %w", typ, err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

var errShape = errors.New("not a compact JWS within its bounds")

// checkShape is what runs before any library: size, then alphabet, then exactly two dots.
func checkShape(token string, max int) error {
	if len(token) == 0 || len(token) > max {
		return errShape
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return errShape
	}
	for _, p := range parts {
		if !api.Token(p, 1, max) {
			return errShape
		}
	}
	return nil
}

// verifySignature parses with the library and returns its verdict on the claims' times apart
// from its verdict on all else: the caller decodes strictly before it judges time.
func verifySignature(token string, keys []Key, opts ...jwt.ParserOption) (timeErr, err error) {
	opts = append(opts, jwt.WithValidMethods([]string{algorithm}), jwt.WithStrictDecoding())
	_, err = jwt.NewParser(opts...).Parse(token, func(t *jwt.Token) (any, error) {
		kid, ok := t.Header["kid"].(string)
		if !ok {
			return nil, errors.New("kid is not a string")
		}
		for _, k := range keys {
			if k.ID == kid {
				return k.Public, nil
			}
		}
		return nil, errors.New("unknown kid")
	})
	// The library validates claims only after the signature held.
	if errors.Is(err, jwt.ErrTokenInvalidClaims) && !errors.Is(err, jwt.ErrTokenRequiredClaimMissing) &&
		(errors.Is(err, jwt.ErrTokenExpired) || errors.Is(err, jwt.ErrTokenUsedBeforeIssued)) {
		return err, nil
	}
	return nil, err
}

// decodeExact decodes header and payload of a token whose signature has been verified.
func decodeExact(token, typ string, payload any, lim strictjson.Limits) error {
	parts := strings.Split(token, ".")
	var h header
	for i, v := range []any{&h, payload} {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(parts[i])
		if err != nil {
			return fmt.Errorf("decode part %d: %w", i, err)
		}
		if err := strictjson.Unmarshal(raw, v, lim); err != nil {
			return fmt.Errorf("decode part %d: %w", i, err)
		}
	}
	if h.Alg != algorithm || h.Typ != typ {
		return errors.New("header is of another kind")
	}
	return nil
}
