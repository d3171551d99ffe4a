// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/corpus"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

var update = flag.Bool("update", false, "write the list of rows into EVIDENCE.md")

// Both algorithms, every subject, and nothing that only looks like it.
func TestSigstoreGoVerifiesOurBundles(t *testing.T) {
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "ecdsa.key")
	ecdsa, err := signing.Generate(key, key+".pub", evidence.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*signing.Signer{w.Evidence, ecdsa} {
		b, st, err := evidence.MakeBundle(w.Statement, w.Blobs, s)
		if err != nil {
			t.Fatal(err)
		}
		file, _ := b.File(evidence.EvidenceFile)
		for _, subject := range st.Subject {
			if err := Accepts(file, s.PublicKey(), "sha256:"+subject.Digest.SHA256); err != nil {
				t.Errorf("%s, subject %s: %v", s.PublicKey().Algorithm(), subject.Name, err)
			}
		}
		if len(st.Subject) < 6 {
			t.Errorf("%d subjects", len(st.Subject))
		}
		digest := "sha256:" + st.Subject[0].Digest.SHA256
		if Accepts(file, w.Gate.PublicKey(), digest) == nil {
			t.Errorf("%s: accepted under another key", s.PublicKey().Algorithm())
		}
		if Accepts(file, s.PublicKey(), evidence.Digest([]byte("other"))) == nil {
			t.Errorf("%s: accepted for another artifact", s.PublicKey().Algorithm())
		}
		changed := bytes.Replace(file, []byte(`"payload":"e`), []byte(`"payload":"f`), 1)
		if bytes.Equal(changed, file) || Accepts(changed, s.PublicKey(), digest) == nil {
			t.Errorf("%s: accepted with a changed payload", s.PublicKey().Algorithm())
		}
	}
}

const (
	document = "../../EVIDENCE.md"
	begin    = "<!-- rows that generic verifiers accept: written by `go test -C ci/interop . -update` -->\n"
	end      = "<!-- end of the rows that generic verifiers accept -->\n"
)

// The published list is what sigstore-go says of the corpus now.
func TestPublishedRows(t *testing.T) {
	rows, dir := generate(t)
	digest, keys := asked(t, dir, rows[0])
	accepted := map[evidence.Reason][]string{}
	refused, admitted := 0, 0
	archives := 0
	for _, r := range rows {
		if !generic(r) {
			if r.Reason != "" {
				archives++
			}
			continue
		}
		err := AcceptsDir(filepath.Join(dir, r.Row, "bundle"), rowKeys(t, dir, r, keys), digest)
		switch {
		case r.Reason == "" && err != nil:
			t.Errorf("%s is admitted by the gate and refused by sigstore-go: %v", r.Row, err)
		case r.Reason == "":
			admitted++
		case err != nil:
			refused++
		default:
			_, name, _ := strings.Cut(r.Row, "-")
			accepted[r.Reason] = append(accepted[r.Reason], "`"+name+"`")
		}
	}
	if admitted == 0 || refused == 0 || len(accepted) == 0 {
		t.Fatalf("%d rows admitted, %d refused, %d reasons of accepted ones", admitted, refused, len(accepted))
	}
	var text strings.Builder
	n := 0
	for _, names := range accepted {
		n += len(names)
	}
	fmt.Fprintf(&text, "\nOf %d rows that the gate denies, sigstore-go accepts %d and refuses %d. It is not asked about %d more, which are\n"+
		"archives of a whole bundle: no generic verifier reads those.\n\n", n+refused, n, refused, archives)
	text.WriteString("| The gate's reason | Rows that sigstore-go accepts |\n|---|---|\n")
	codes := slices.SortedFunc(maps.Keys(accepted), func(a, b evidence.Reason) int {
		if d := a.Step() - b.Step(); d != 0 {
			return d
		}
		return strings.Compare(string(a), string(b))
	})
	for _, code := range codes {
		fmt.Fprintf(&text, "| `%s` | %s |\n", code, strings.Join(accepted[code], ", "))
	}
	text.WriteString("\n")
	compare(t, text.String())
}

func compare(t *testing.T, want string) {
	t.Helper()
	body, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(body), begin)
	got, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("EVIDENCE.md has no section between %q and %q", begin, end)
	}
	if got == want {
		return
	}
	if *update {
		if err := os.WriteFile(document, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("EVIDENCE.md lists other rows; `go test -C ci/interop . -update` writes\n%s", want)
}

// generate makes the corpus of a synthetic bundle: its rows are named by the corpus, not by chance.
func generate(t *testing.T) ([]corpus.Expect, string) {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := corpus.Config{
		Bundle: filepath.Join(dir, "bundle"), Trust: filepath.Join(dir, "trust.json"), Out: filepath.Join(dir, "corpus"), Now: w.Now,
	}
	if err := b.Write(c.Bundle); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Trust, trust, 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := corpus.Generate(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 100 || rows[0].Reason != "" {
		t.Fatalf("%d rows, the first expects %q", len(rows), rows[0].Reason)
	}
	return rows, c.Out
}

// asked is what a user has before any bundle: the digest of an image, and the evidence keys.
func asked(t *testing.T, dir string, unmodified corpus.Expect) (string, []evidence.PublicKey) {
	t.Helper()
	b, err := evidence.ReadBundle(filepath.Join(dir, unmodified.Row, "bundle"), evidence.AdmitDepth)
	if err != nil {
		t.Fatal(err)
	}
	st, _, err := evidence.UnverifiedStatement(b)
	if err != nil {
		t.Fatal(err)
	}
	keys := policyKeys(t, filepath.Join(dir, unmodified.Row, "trust.json"))
	if len(keys) != 1 {
		t.Fatalf("%d evidence keys in the policy of %s", len(keys), unmodified.Row)
	}
	return st.Predicate.Images[0].ConfigDigest, keys
}

// rowKeys are the evidence keys of a row's own policy, or those of the unmodified row where a row
// is about its policy.
func rowKeys(t *testing.T, dir string, r corpus.Expect, fallback []evidence.PublicKey) []evidence.PublicKey {
	t.Helper()
	if r.Group == "Policy" || r.Reason.Step() == 0 {
		return fallback
	}
	return policyKeys(t, filepath.Join(dir, r.Row, "trust.json"))
}

func policyKeys(t *testing.T, path string) []evidence.PublicKey {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := evidence.UnverifiedPolicy(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var keys []evidence.PublicKey
	for _, k := range p.Keys {
		if k.Role == evidence.RoleGate || k.Role == evidence.RoleMutation {
			continue
		}
		key, err := evidence.ParsePublicKey(k.SPKI)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		keys = append(keys, key)
	}
	return keys
}
