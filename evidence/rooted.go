// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// maxRoots bounds the signatures of a policy file: two while a root follows another, and room for a
// group of roots that sign together.
const maxRoots = 8

// openRooted verifies a policy file: every signature is one of roots', by hints that are sorted and
// unique, so that no byte of the file is outside what was checked. It returns the signers' SPKI digests.
func openRooted(data []byte, roots []PublicKey) (payload []byte, signers []string, err error) {
	var e Envelope
	if err := decodeCanonical(data, &e); err != nil {
		return nil, nil, err
	}
	if n := len(e.Signatures); n < 1 || n > maxRoots {
		return nil, nil, deny(ReasonSignatureCount, "%d signatures", n)
	}
	if e.PayloadType != PolicyType {
		return nil, nil, deny(ReasonPayloadType, "%q", e.PayloadType)
	}
	for i, s := range e.Signatures {
		if i > 0 && e.Signatures[i-1].KeyID >= s.KeyID {
			return nil, nil, deny(ReasonSignatureCount, "signatures are not sorted by their key, each once")
		}
		k := slices.IndexFunc(roots, func(k PublicKey) bool { return k.Hint() == s.KeyID })
		if k < 0 {
			return nil, nil, deny(ReasonKeyUnknown, "hint %q", s.KeyID)
		}
		if !roots[k].Verify(PAE(e.PayloadType, e.Payload), s.Sig) {
			return nil, nil, deny(ReasonSignature, "key %s", roots[k].Digest())
		}
		signers = append(signers, roots[k].Digest())
	}
	slices.Sort(signers)
	return e.Payload, signers, nil
}

func sealRooted(payload []byte, roots []Signer) ([]byte, error) {
	if len(roots) < 1 || len(roots) > maxRoots {
		return nil, fmt.Errorf("sign policy: %d root keys, at most %d", len(roots), maxRoots)
	}
	e := Envelope{Payload: payload, PayloadType: PolicyType}
	for _, r := range roots {
		sig, err := r.Sign(PAE(PolicyType, payload))
		if err != nil {
			return nil, fmt.Errorf("sign policy: %w", err)
		}
		e.Signatures = append(e.Signatures, Signature{Sig: sig, KeyID: r.PublicKey().Hint()})
	}
	slices.SortFunc(e.Signatures, func(a, b Signature) int { return strings.Compare(a.KeyID, b.KeyID) })
	for i := range e.Signatures[1:] {
		if e.Signatures[i].KeyID == e.Signatures[i+1].KeyID {
			return nil, fmt.Errorf("sign policy: key %s is there twice", e.Signatures[i].KeyID)
		}
	}
	return strictjson.Marshal(e)
}
