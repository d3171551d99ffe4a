// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"reflect"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

func TestReceiptAndHealth(t *testing.T) {
	key := newKey(t)
	pub := key.Public().(ed25519.PublicKey)
	s, err := NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	receipt := api.Receipt{WorkspaceID: "ws", SandboxID: strings.Repeat("a", 32), Generation: 1, Mode: api.Qualification, ExpiresAtUnixMs: 5}
	health := api.Health{WorkerID: "w", Challenge: "c", EvidenceDigests: []string{}, Features: []string{"exec"}}
	r, err := s.Receipt(receipt)
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Health(health)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := VerifyReceipt(pub, r); err != nil || got != receipt {
		t.Errorf("receipt read back as %+v, %v", got, err)
	}
	if got, err := VerifyHealth(pub, h, "c"); err != nil || !reflect.DeepEqual(got, health) {
		t.Errorf("health read back as %+v, %v", got, err)
	}
	foreign := newKey(t).Public().(ed25519.PublicKey)
	flip := func(s string) string {
		b := []byte(s)
		i := strings.IndexByte(s, '.') + 20
		b[i] ^= 1
		return string(b)
	}
	for name, tt := range map[string]struct {
		err  error
		code api.Code
	}{
		"receipt under another key": {second(VerifyReceipt(foreign, r)), api.BindingReceiptInvalid},
		"receipt flipped":           {second(VerifyReceipt(pub, flip(r))), api.BindingReceiptInvalid},
		"health as a receipt":       {second(VerifyReceipt(pub, h)), api.BindingReceiptInvalid},
		"health under another key":  {second(VerifyHealth(foreign, h, "c")), api.ResponseInvalid},
		"health flipped":            {second(VerifyHealth(pub, flip(h), "c")), api.ResponseInvalid},
		"receipt as health":         {second(VerifyHealth(pub, r, "c")), api.ResponseInvalid},
		"another challenge":         {second(VerifyHealth(pub, h, "d")), api.ResponseInvalid},
		"empty":                     {second(VerifyHealth(pub, "", "c")), api.ResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if codeOf(tt.err) != tt.code {
				t.Errorf("got %v, want %s", tt.err, tt.code)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestParsePrivateKey(t *testing.T) {
	key := newKey(t)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if got, err := ParsePrivateKey([]byte(text)); err != nil || !got.Equal(key) {
		t.Errorf("own key: %v", err)
	}
	for name, bad := range map[string]string{
		"empty":        "",
		"another type": strings.ReplaceAll(text, "PRIVATE KEY", "PUBLIC KEY"),
		"two blocks":   text + text,
		"truncated":    text[:40] + text[60:],
	} {
		if _, err := ParsePrivateKey([]byte(bad)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
