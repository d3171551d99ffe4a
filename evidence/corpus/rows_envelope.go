// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

func replace(old, with string) func([]byte) []byte {
	return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(with), 1) }
}

// payloadType signs the payload under another type, so that only the type check can refuse.
func payloadType(t string) func(*draft) {
	return func(d *draft) {
		d.sign = func(m []byte) ([]byte, error) { return d.signer.Sign(evidence.PAE(t, m)) }
		d.envelope = func(s *evidence.SigstoreBundle) { s.DSSEEnvelope.PayloadType = t }
	}
}

func mediaType(t string) func(*draft) {
	return func(d *draft) { d.envelope = func(s *evidence.SigstoreBundle) { s.MediaType = t } }
}

func hint(h func(*draft) string) func(*draft) {
	return func(d *draft) {
		d.envelope = func(s *evidence.SigstoreBundle) { s.VerificationMaterial.PublicKey.Hint = h(d) }
	}
}

func sigs(f func([]evidence.Signature) []evidence.Signature) func(*draft) {
	return func(d *draft) {
		d.envelope = func(s *evidence.SigstoreBundle) { s.DSSEEnvelope.Signatures = f(s.DSSEEnvelope.Signatures) }
	}
}

func edFile(f func([]byte) []byte) func(*draft) { return func(d *draft) { d.file = f } }

// rewriteString changes the value of one string member of the bundle file.
func rewriteString(member string, f func(string) string) func([]byte) []byte {
	return func(b []byte) []byte {
		head, rest, ok := strings.Cut(string(b), `"`+member+`":"`)
		value, tail, ok2 := strings.Cut(rest, `"`)
		if !ok || !ok2 {
			return b
		}
		return []byte(head + `"` + member + `":"` + f(value) + `"` + tail)
	}
}

func envelopeRows() []row {
	const g = "Envelope"
	return []row{
		{"payload-type-other", g, evidence.ReasonPayloadType, payloadType("application/json")},
		{"payload-type-case", g, evidence.ReasonPayloadType, payloadType("application/vnd.in-toto+JSON")},
		{"payload-type-parameter", g, evidence.ReasonPayloadType, payloadType(evidence.InTotoType + ";charset=utf-8")},
		{"payload-byte-changed", g, evidence.ReasonSignature, func(d *draft) {
			d.envelope = func(s *evidence.SigstoreBundle) { s.DSSEEnvelope.Payload = append(s.DSSEEnvelope.Payload, ' ') }
		}},
		{"signature-byte-changed", g, evidence.ReasonSignature, sigs(func(s []evidence.Signature) []evidence.Signature {
			s[0].Sig[10] ^= 1
			return s
		})},
		{"signature-empty", g, evidence.ReasonSignature, sigs(func(s []evidence.Signature) []evidence.Signature { s[0].Sig = nil; return s })},
		{"signature-none", g, evidence.ReasonSignatureCount, sigs(func([]evidence.Signature) []evidence.Signature { return nil })},
		{"signature-two", g, evidence.ReasonSignatureCount, sigs(func(s []evidence.Signature) []evidence.Signature { return append(s, s[0]) })},
		{"signature-key-id", g, evidence.ReasonKeyUnknown, sigs(func(s []evidence.Signature) []evidence.Signature { s[0].KeyID = "a"; return s })},
		{"signature-without-pae", g, evidence.ReasonSignature, func(d *draft) { d.sign = d.ring.evidence.Sign }},
		{"signature-ed25519ph", g, evidence.ReasonSignature, func(d *draft) {
			d.sign = func(m []byte) ([]byte, error) {
				h := crypto.SHA512.New()
				h.Write(evidence.PAE(evidence.InTotoType, m))
				return d.ring.evidence.private.Sign(rand.Reader, h.Sum(nil), &ed25519.Options{Hash: crypto.SHA512})
			}
		}},
		{"base64-newline", g, evidence.ReasonBase64, edFile(rewriteString("sig", func(s string) string { return s + `\n` }))},
		{"base64-url-alphabet", g, evidence.ReasonBase64, edFile(rewriteString("sig", func(string) string {
			return base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xfb, 0xff}, 32))
		}))},
		{"base64-unpadded", g, evidence.ReasonBase64, edFile(rewriteString("sig", func(s string) string { return strings.TrimRight(s, "=") }))},
		{"hint-of-a-signed-by-b", g, evidence.ReasonSignature, func(d *draft) {
			d.trustKey(d.ring.second, "second")
			d.sign = func(m []byte) ([]byte, error) { return d.ring.second.Sign(evidence.PAE(evidence.InTotoType, m)) }
		}},
		{"hint-unknown", g, evidence.ReasonKeyUnknown, func(d *draft) { d.signer = d.ring.stranger }},
		{"hint-empty", g, evidence.ReasonKeyUnknown, hint(func(*draft) string { return "" })},
		{"hint-hex", g, evidence.ReasonKeyUnknown, hint(func(d *draft) string { return d.signer.public.Digest() })},
		{"one-key-for-two", g, evidence.ReasonThreshold, func(d *draft) {
			d.policy.Thresholds[d.st.Predicate.Issuer.Role] = 2
			d.addFile(func(p []byte) ([]byte, error) { return evidence.SealBundle(p, d.signer) })
		}},
		{"one-key-two-entries", g, evidence.ReasonPolicyInvalid, func(d *draft) { d.trustKey(d.ring.evidence, "second") }},
		{"one-identity-two-keys", g, evidence.ReasonThreshold, func(d *draft) {
			d.twoSigners(2)
			d.entry(d.ring.second).Identity = d.st.Predicate.Issuer.ID
		}},
		{"payloads-equal-in-meaning", g, evidence.ReasonPayloads, func(d *draft) {
			d.twoSigners(2)
			d.addFile(func(p []byte) ([]byte, error) { return evidence.SealBundle(append(p, '\n'), d.ring.second) })
		}},
		{"second-signature-invalid", g, evidence.ReasonSignature, func(d *draft) {
			d.twoSigners(1)
			d.addFile(func(p []byte) ([]byte, error) {
				b, err := evidence.SealBundle(p, d.ring.second)
				return rewriteString("sig", func(string) string { return base64.StdEncoding.EncodeToString(make([]byte, 64)) })(b), err
			})
		}},
		{"ed25519-for-ecdsa-key", g, evidence.ReasonSignature, func(d *draft) {
			d.trustKey(d.ring.ecdsa, "second")
			d.signer = d.ring.ecdsa
			d.sign = func(m []byte) ([]byte, error) { return d.ring.evidence.Sign(evidence.PAE(evidence.InTotoType, m)) }
		}},
		{"ecdsa-for-ed25519-key", g, evidence.ReasonSignature, func(d *draft) {
			d.sign = func(m []byte) ([]byte, error) { return d.ring.ecdsa.Sign(evidence.PAE(evidence.InTotoType, m)) }
		}},
		{"algorithm-of-policy-differs", g, evidence.ReasonPolicyInvalid, func(d *draft) { d.entry(d.ring.evidence).Algorithm = evidence.ECDSAP256 }},
		{"curve-p384", g, evidence.ReasonPolicyInvalid, func(d *draft) {
			k, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
			if err == nil {
				e := d.entry(d.ring.evidence)
				e.SPKI, err = x509.MarshalPKIXPublicKey(k.Public())
				e.SPKIDigest, e.Algorithm = evidence.Digest(e.SPKI), evidence.ECDSAP256
				evidence.SortPolicyKeys(d.policy.Keys)
			}
			if err != nil {
				d.errs = append(d.errs, fmt.Errorf("make P-384 key: %w", err))
			}
		}},
		{"message-signature", g, evidence.ReasonBundleJSON, edFile(replace(`"dsseEnvelope":`, `"messageSignature":`))},
		{"certificate", g, evidence.ReasonBundleJSON, edFile(replace(`"publicKey":{`, `"certificate":{"rawBytes":"AAAA"},"publicKey":{`))},
		{"log-entry", g, evidence.ReasonBundleJSON, edFile(replace(`"verificationMaterial":{`, `"verificationMaterial":{"tlogEntries":[],`))},
		{"bundle-v0.1", g, evidence.ReasonMediaType, mediaType("application/vnd.dev.sigstore.bundle+json;version=0.1")},
		{"bundle-v0.2", g, evidence.ReasonMediaType, mediaType("application/vnd.dev.sigstore.bundle+json;version=0.2")},
		{"bundle-v0.4", g, evidence.ReasonMediaType, mediaType("application/vnd.dev.sigstore.bundle.v0.4+json")},
	}
}

// edPayload changes the payload's text and signs it again.
func edPayload(f func([]byte) []byte) func(*draft) { return func(d *draft) { d.payload = f } }

func jsonRows() []row {
	const g = "JSON"
	return []row{
		{"bundle-duplicate-name", g, evidence.ReasonBundleJSON, edFile(replace(`{"mediaType"`, `{"mediaType":"x","mediaType"`))},
		{"bundle-case-variant", g, evidence.ReasonBundleJSON, edFile(replace(`"mediaType"`, `"MediaType"`))},
		{"bundle-unknown-member", g, evidence.ReasonBundleJSON, edFile(replace(`{"mediaType"`, `{"note":1,"mediaType"`))},
		{"bundle-white-space", g, evidence.ReasonBundleCanonical, edFile(replace(`{"mediaType"`, `{ "mediaType"`))},
		{"bundle-escaped", g, evidence.ReasonBundleCanonical, edFile(replace(`"mediaType"`, `"\u006dediaType"`))},
		{"bundle-newline-after", g, evidence.ReasonBundleCanonical, edFile(func(b []byte) []byte { return append(b, '\n') })},
		{"bundle-garbage-after", g, evidence.ReasonBundleJSON, edFile(func(b []byte) []byte { return append(b, 'x') })},
		{"bundle-second-value", g, evidence.ReasonBundleJSON, edFile(func(b []byte) []byte { return append(b, '{', '}') })},
		{"bundle-byte-order-mark", g, evidence.ReasonBundleJSON, edFile(func(b []byte) []byte { return append([]byte("\ufeff"), b...) })},
		{"bundle-depth-bomb", g, evidence.ReasonBundleJSON, edFile(func([]byte) []byte { return bytes.Repeat([]byte{'['}, 1<<20) })},
		{"bundle-empty", g, evidence.ReasonBundleJSON, edFile(func([]byte) []byte { return []byte{} })},
		{"statement-duplicate-name", g, evidence.ReasonPayloadJSON, edPayload(replace(`{"_type"`, `{"_type":"x","_type"`))},
		{"predicate-duplicate-name", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1`, `"schemaVersion":1,"schemaVersion":1`))},
		{"statement-case-variant", g, evidence.ReasonPayloadJSON, edPayload(replace(`"predicateType"`, `"PredicateType":"x","predicateType"`))},
		{"predicate-case-variant", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion"`, `"SchemaVersion"`))},
		{"statement-unknown-member", g, evidence.ReasonPayloadJSON, edPayload(replace(`{"_type"`, `{"note":"x","_type"`))},
		{"predicate-unknown-member", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1`, `"schemaVersion":1,"note":"x"`))},
		{"payload-garbage-after", g, evidence.ReasonPayloadJSON, edPayload(func(b []byte) []byte { return append(b, 'x') })},
		{"payload-second-value", g, evidence.ReasonPayloadJSON, edPayload(func(b []byte) []byte { return append(b, "{}"...) })},
		{"payload-byte-order-mark", g, evidence.ReasonPayloadJSON, edPayload(func(b []byte) []byte { return append([]byte("\ufeff"), b...) })},
		{"payload-invalid-utf8", g, evidence.ReasonPayloadJSON, edPayload(replace(`"limitations":["`, "\"limitations\":[\"\xff"))},
		{"payload-depth-bomb", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1`, `"schemaVersion":1,"extensions":{"x":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`))},
		{"number-1e400", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1`, `"schemaVersion":1e400`))},
		{"number-2^53+1", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1`, `"schemaVersion":9007199254740993`))},
		{"number-minus-zero", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1`, `"schemaVersion":-0`))},
		{"number-1.0", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1`, `"schemaVersion":1.0`))},
		{"null-for-array", g, evidence.ReasonPayloadJSON, edPayload(func(b []byte) []byte {
			head, rest, _ := strings.Cut(string(b), `"limitations":[`)
			_, tail, _ := strings.Cut(rest, `]`)
			return []byte(head + `"limitations":null` + tail)
		})},
		{"member-missing", g, evidence.ReasonPayloadJSON, edPayload(replace(`"schemaVersion":1,`, ``))},
	}
}
