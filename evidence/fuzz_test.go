// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"bytes"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// splice replaces cut bytes at an offset by edit. Inputs are edits and not files, since keys
// are fresh in every process: a file of one process means nothing to the next.
func splice(b []byte, offset uint32, cut uint16, edit []byte) []byte {
	at := int(offset) % (len(b) + 1)
	end := min(at+int(cut), len(b))
	return append(append(bytes.Clone(b[:at]), edit...), b[end:]...)
}

// FuzzGate changes any file of a bundle: refuse with a code of the table, or the bytes are
// those that are admitted.
func FuzzGate(f *testing.F) {
	w := world(f)
	b, q := bundleAndQuestion(f, w)
	names := b.Names()
	f.Add(uint8(0), uint32(0), uint16(0), []byte{})
	f.Add(uint8(3), uint32(1), uint16(0), []byte(`"mediaType":"x",`))
	for i := range names {
		f.Add(uint8(i), uint32(17), uint16(1), []byte("x"))
		f.Add(uint8(i), uint32(1<<31), uint16(9), []byte(nil))
	}
	f.Fuzz(func(t *testing.T, which uint8, offset uint32, cut uint16, edit []byte) {
		name := names[int(which)%len(names)]
		old, _ := b.File(name)
		changed := splice(old, offset, cut, edit)
		d := evidence.Decide(q, b.With(name, changed))
		if same := bytes.Equal(old, changed); d.Admitted != same {
			t.Fatalf("%s: admitted %v, unchanged %v (%s)", name, d.Admitted, same, d.Detail)
		}
		if !d.Admitted && d.Reason.Step() < 1 {
			t.Fatalf("%s: denied with %q", name, d.Reason)
		}
	})
}

// FuzzSignedPayload changes the payload and signs it again, as a hostile but trusted signer
// could: never a panic, and what is admitted is the same images and binaries in the same
// cohort, with a verdict that the rows give.
func FuzzSignedPayload(f *testing.F) {
	w := world(f)
	b, q := bundleAndQuestion(f, w)
	_, payload, err := evidence.UnverifiedStatement(b)
	if err != nil {
		f.Fatal(err)
	}
	good := evidence.Decide(q, b)
	f.Add(uint32(0), uint16(0), []byte{})
	for _, marker := range []string{`"limitations"`, `"cases"`, `"subject"`, `"seal"`, `"pass"`, `"schemaVersion":1`} {
		at := bytes.Index(payload, []byte(marker))
		f.Add(uint32(at), uint16(0), []byte(`"note":"x",`))
		f.Add(uint32(at+len(marker)), uint16(2), []byte(`-0`))
	}
	f.Fuzz(func(t *testing.T, offset uint32, cut uint16, edit []byte) {
		changed := splice(payload, offset, cut, edit)
		file, err := evidence.SealBundle(changed, w.Evidence)
		if err != nil {
			t.Fatal(err)
		}
		d := evidence.Decide(q, b.With(evidence.EvidenceFile, file))
		if !d.Admitted {
			if d.Reason.Step() < 1 {
				t.Fatalf("denied with %q", d.Reason)
			}
			return
		}
		if d.Cohort != good.Cohort || d.Verdict != evidence.Conformant || !sameDigests(d.Subjects, good.Subjects) {
			t.Fatalf("admitted another thing: %+v", d)
		}
	})
}

func sameDigests(a, b []evidence.DecidedSubject) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Role != b[i].Role || a[i].Digest != b[i].Digest {
			return false
		}
	}
	return true
}

// FuzzPolicy changes a policy file: refuse with a code of step 0, or the bytes are the signed.
func FuzzPolicy(f *testing.F) {
	w, err := evidencetest.New(world(f).Now)
	if err != nil {
		f.Fatal(err)
	}
	trust, err := w.Trust()
	if err != nil {
		f.Fatal(err)
	}
	roots := []evidence.PublicKey{w.Root.PublicKey()}
	f.Add(uint32(0), uint16(0), []byte{})
	f.Add(uint32(12), uint16(3), []byte("AAA"))
	f.Fuzz(func(t *testing.T, offset uint32, cut uint16, edit []byte) {
		changed := splice(trust, offset, cut, edit)
		p, err := evidence.OpenPolicy(changed, roots, evidence.NewMemory(), w.Now)
		if same := bytes.Equal(changed, trust); (err == nil) != same || (p != nil) != same {
			t.Fatalf("accepted %v, unchanged %v: %v", err == nil, same, err)
		}
		if err != nil && evidence.ReasonOf(err).Step() != 0 {
			t.Fatalf("refused with %v", err)
		}
		// The document inside, signed again: refused, or it reads back the same.
		payload, err := evidence.UnverifiedPayload(trust)
		if err != nil {
			t.Fatal(err)
		}
		file, err := evidence.SealEnvelope(evidence.PolicyType, splice(payload, offset, cut, edit), w.Root)
		if err != nil {
			t.Fatal(err)
		}
		p, err = evidence.OpenPolicy(file, roots, evidence.NewMemory(), w.Now)
		if err != nil {
			return
		}
		text, err := strictjson.Marshal(p.Document())
		var again evidence.TrustPolicy
		if err != nil || strictjson.Unmarshal(text, &again, strictjson.Limits{}) != nil || evidence.CheckPolicy(again) != nil {
			t.Fatalf("accepted policy does not read back: %v\n%s", err, text)
		}
	})
}
