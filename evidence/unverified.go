// SPDX-License-Identifier: Apache-2.0

package evidence

import "github.com/hallmark-sandbox/hallmark/strictjson"

// UnverifiedStatement decodes what a bundle says, without asking who said it. For inspection
// and for making test rows; nothing may be decided from it.
func UnverifiedStatement(b *Bundle) (Statement, []byte, error) {
	data, ok := b.File(evidenceFile)
	if !ok {
		return Statement{}, nil, deny(ReasonFileGone, "%s", evidenceFile)
	}
	var s SigstoreBundle
	if err := decodeCanonical(data, &s); err != nil {
		return Statement{}, nil, err
	}
	var st Statement
	if err := strictjson.Unmarshal(s.DSSEEnvelope.Payload, &st, payloadLimits); err != nil {
		return Statement{}, nil, deny(ReasonPayloadJSON, "%v", err)
	}
	return st, s.DSSEEnvelope.Payload, nil
}

// UnverifiedPolicy decodes a policy file without asking who signed it. See UnverifiedStatement.
func UnverifiedPolicy(data []byte) (TrustPolicy, error) {
	payload, err := UnverifiedPayload(data)
	if err != nil {
		return TrustPolicy{}, err
	}
	var p TrustPolicy
	if err := strictjson.Unmarshal(payload, &p, payloadLimits); err != nil {
		return TrustPolicy{}, deny(ReasonPolicyInvalid, "%v", err)
	}
	return p, nil
}

// EvidenceFile is the name of the first signer's file in a bundle directory.
const EvidenceFile = evidenceFile

// BlobName is the name in a bundle directory of the blob with this digest.
func BlobName(digest string) string { return blobName(digest) }

// UnverifiedPayload returns the payload of an envelope file. See UnverifiedStatement.
func UnverifiedPayload(envelope []byte) ([]byte, error) {
	var e Envelope
	if err := decodeCanonical(envelope, &e); err != nil {
		return nil, err
	}
	return e.Payload, nil
}
