// SPDX-License-Identifier: Apache-2.0

package signing_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms"
	"github.com/sigstore/sigstore/pkg/signature/kms/fake"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// A KMS, sigstore's fake of one in this process, signs a bundle that the gate's decision admits.
func TestKMSSignsEvidence(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{evidence.ECDSAP256: p256, evidence.Ed25519: ed} {
		ctx := context.WithValue(t.Context(), fake.KmsCtxKey{}, crypto.PrivateKey(key))
		s, err := signing.Open(ctx, fake.ReferenceScheme+"key", nil)
		if err != nil {
			t.Fatal(err)
		}
		if s.PublicKey().Algorithm() != name {
			t.Errorf("algorithm %s, want %s", s.PublicKey().Algorithm(), name)
		}
		w, err := evidencetest.New(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		w.Evidence = s
		w.Policy.Keys = append(w.Policy.Keys, evidencetest.Key(s, evidence.RoleCI, "ci.example", w.Now))
		evidence.SortPolicyKeys(w.Policy.Keys)
		b, err := w.Bundle()
		if err != nil {
			t.Fatal(err)
		}
		q, err := w.Question()
		if err != nil {
			t.Fatal(err)
		}
		if d := evidence.Decide(q, b); !d.Admitted {
			t.Errorf("%s: %s", name, d.Detail)
		}
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), fake.KmsCtxKey{}, crypto.PrivateKey(p384))
	if _, err := signing.Open(ctx, fake.ReferenceScheme+"key", nil); !errors.Is(err, signing.ErrKMS) {
		t.Errorf("P-384: %v", err)
	}
	if _, err := signing.Open(t.Context(), "nosuchkms://key", nil); !errors.Is(err, signing.ErrKMS) {
		t.Errorf("no provider: %v", err)
	}
}

// liar is a KMS that signs something else than it is asked to.
type liar struct{ kms.SignerVerifier }

func (l liar) SignMessage(_ io.Reader, opts ...signature.SignOption) ([]byte, error) {
	return l.SignerVerifier.SignMessage(bytes.NewReader([]byte("other")), opts...)
}

// mute is a KMS that answers when its caller has given up.
type mute struct{ kms.SignerVerifier }

func (mute) PublicKey(...signature.PublicKeyOption) (crypto.PublicKey, error) {
	return nil, errors.New("no answer")
}

func TestKMSThatFails(t *testing.T) {
	register := func(scheme string, wrap func(kms.SignerVerifier) kms.SignerVerifier) {
		kms.AddProvider(scheme, func(ctx context.Context, _ string, h crypto.Hash, _ ...signature.RPCOption) (kms.SignerVerifier, error) {
			good, err := fake.LoadSignerVerifier(ctx, h)
			return wrap(good), err
		})
	}
	register("liarkms://", func(g kms.SignerVerifier) kms.SignerVerifier { return liar{g} })
	register("mutekms://", func(g kms.SignerVerifier) kms.SignerVerifier { return mute{g} })
	s, err := signing.Open(t.Context(), "liarkms://key", nil)
	if err != nil {
		t.Fatal(err)
	}
	if sig, err := s.Sign([]byte("message")); err == nil {
		t.Errorf("a signature of another message was returned: %x", sig)
	}
	if _, err := signing.Open(t.Context(), "mutekms://key", nil); !errors.Is(err, signing.ErrKMS) {
		t.Errorf("no public key: %v", err)
	}
}
