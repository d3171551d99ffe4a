// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// FuzzPins changes what a gate has signed and signs it again, as a gate could that was taken over:
// never a panic, and a worker that admits it admits no digest that its own evidence does not give, on
// no other cohort, and for no longer.
func FuzzPins(f *testing.F) {
	w := world(f)
	w.Policy.Fleet = []evidence.FleetCohort{{Name: "host", Profiles: []string{"quota"}, QuotaBackend: "loop"}}
	c := pinned(f, w)
	good, err := evidence.Admit(c)
	if err != nil {
		f.Fatal(err)
	}
	file, err := os.ReadFile(c.Pins)
	if err != nil {
		f.Fatal(err)
	}
	payload, err := evidence.UnverifiedPayload(file)
	if err != nil {
		f.Fatal(err)
	}
	may := map[string]bool{}
	for _, m := range good.Pins().Images {
		may[m.ConfigDigest] = true
	}
	c.Pins = filepath.Join(f.TempDir(), "pins.json")
	f.Add(uint32(0), uint16(0), []byte{})
	for _, marker := range []string{`"cohorts"`, `"images"`, `"notAfter"`, `"subject"`, `"evidence"`} {
		for at := range len(payload) - len(marker) {
			if string(payload[at:at+len(marker)]) == marker {
				f.Add(uint32(at), uint16(0), []byte(`"x":1,`))
				f.Add(uint32(at+len(marker)), uint16(2), []byte(":["))
			}
		}
	}
	f.Fuzz(func(t *testing.T, offset uint32, cut uint16, edit []byte) {
		file, err := evidence.SealEnvelope(evidence.InTotoType, splice(payload, offset, cut, edit), w.Gate)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.Pins, file, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := evidence.Admit(c)
		if err != nil {
			if evidence.ReasonOf(err) == "" {
				t.Fatalf("refused without a reason: %v", err)
			}
			return
		}
		if a.Pins().Cohort != c.Cohort || a.NotAfter().After(good.NotAfter()) {
			t.Fatalf("admitted %s until %s", a.Pins().Cohort, a.NotAfter())
		}
		for _, m := range a.Pins().Images {
			if !may[m.ConfigDigest] {
				t.Fatalf("admitted image %s", m.ConfigDigest)
			}
		}
	})
}

// FuzzMemory opens whatever lies where the rollback memory should: it is refused, or it says the same
// after it was saved and opened again.
func FuzzMemory(f *testing.F) {
	w := world(f)
	_, q := bundleAndQuestion(f, w)
	f.Add([]byte(`{"schemaVersion":1,"policyVersion":3,"policyDigest":"x","seen":{}}`))
	f.Add([]byte(`{"schemaVersion":1,"policyVersion":3,"policyDigest":"x","policyRoots":["a"],"pinsMade":"9","seen":{"a b c":{"sequence":1,"payload":"p","runId":"r"}}}`))
	f.Add([]byte(`{"schemaVersion":1,"policyVersion":1e3,"seen":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		name := filepath.Join(dir, "rollback.json")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := evidence.OpenMemory(dir)
		if err != nil {
			return
		}
		defer func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}()
		m.SeePolicy(q.Policy)
		if err := m.Save(); err != nil {
			t.Fatal(err)
		}
		first, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := strictjson.Unmarshal(first, &v, strictjson.Limits{}); err != nil {
			t.Fatalf("saved %q: %v", first, err)
		}
	})
}
