// SPDX-License-Identifier: Apache-2.0

package signing_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"github.com/sigstore/sigstore/pkg/signature"
	sigdsse "github.com/sigstore/sigstore/pkg/signature/dsse"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

// The format's own schema reads our bundle without an unknown member, and sigstore's verifier
// accepts the envelope in it.
func TestBundleIsSigstoreV03(t *testing.T) {
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	text, _ := b.File(evidence.EvidenceFile)
	var p protobundle.Bundle
	if err := protojson.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	env := p.GetDsseEnvelope()
	if p.GetMediaType() != evidence.BundleMediaType || env == nil || len(env.GetSignatures()) != 1 {
		t.Fatalf("media type %q, envelope %v", p.GetMediaType(), env)
	}
	if got, want := p.GetVerificationMaterial().GetPublicKey().GetHint(), w.Evidence.PublicKey().Hint(); got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
	key, err := x509.ParsePKIXPublicKey(w.Evidence.PublicKey().SPKI())
	if err != nil {
		t.Fatal(err)
	}
	v, err := signature.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	ev, err := dsse.NewEnvelopeVerifier(&sigdsse.VerifierAdapter{SignatureVerifier: v, Pub: key})
	if err != nil {
		t.Fatal(err)
	}
	accepted, payload, err := ev.VerifyAndDecode(context.Background(), &dsse.Envelope{
		PayloadType: env.GetPayloadType(), Payload: encode(env.GetPayload()),
		Signatures: []dsse.Signature{{Sig: encode(env.GetSignatures()[0].GetSig())}},
	})
	if err != nil || len(accepted) != 1 {
		t.Fatalf("%d keys, %v", len(accepted), err)
	}
	if _, own, err := evidence.UnverifiedStatement(b); err != nil || !bytes.Equal(own, payload) {
		t.Errorf("payloads differ (%v)", err)
	}
}

func encode(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
