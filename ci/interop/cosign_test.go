// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/corpus"
)

// cosignVariable names a cosign program. Building one takes longer than all else here, so that without it
// cosign is not asked.
const cosignVariable = "HALLMARK_COSIGN"

// cosign asks the command that EVIDENCE.md documents about the first evidence file of a bundle directory.
func cosign(t *testing.T, program, dir string, key evidence.PublicKey, digest string) (string, error) {
	t.Helper()
	public := filepath.Join(t.TempDir(), "evidence.pub")
	if err := os.WriteFile(public, key.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "verify-blob-attestation", "--key", public, "--bundle", filepath.Join(dir, evidence.EvidenceFile),
		"--insecure-ignore-tlog", "--type", evidence.PredicateType, "--digestAlg", "sha256", "--digest", strings.TrimPrefix(digest, "sha256:"))
	// It must find nothing of whoever runs this test.
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Of every row of the corpus cosign says what sigstore-go says, so that the published list is of both; where it
// does not, EVIDENCE.md names the row.
func TestCosignSaysTheSame(t *testing.T) {
	program := os.Getenv(cosignVariable)
	if program == "" {
		t.Skipf("%s names no cosign", cosignVariable)
	}
	rows, dir := generate(t)
	digest, keys := asked(t, dir, rows[0])
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, named, ok := strings.Cut(string(text), cosignOnly)
	named, _, ended := strings.Cut(named, "\n\n")
	if !ok || !ended {
		t.Fatalf("EVIDENCE.md does not say %q", cosignOnly)
	}
	same, other := 0, 0
	for _, r := range rows {
		if !generic(r) {
			continue
		}
		bundle := filepath.Join(dir, r.Row, "bundle")
		accepts := false
		said := ""
		for _, k := range rowKeys(t, dir, r, keys) {
			out, err := cosign(t, program, bundle, k, digest)
			accepts, said = accepts || err == nil, said+out
		}
		if theirs := AcceptsDir(bundle, rowKeys(t, dir, r, keys), digest) == nil; accepts == theirs {
			same++
			continue
		}
		other++
		_, name, _ := strings.Cut(r.Row, "-")
		if !strings.Contains(named, "`"+name+"`") {
			t.Errorf("%s: cosign accepts: %v, and sigstore-go does not say the same: %s", r.Row, accepts, said)
		}
	}
	t.Logf("cosign says the same of %d rows, and another thing of %d", same, other)
	if want := strings.Count(named, "`"); want != 2*other {
		t.Errorf("EVIDENCE.md names %d rows, and there are %d", want/2, other)
	}
}

// cosignOnly begins the sentence in EVIDENCE.md that names the rows in which cosign differs.
const cosignOnly = "cosign differs from sigstore-go in"

// generic says whether a row is about files that generic verifiers read: the archive of a whole bundle is none.
func generic(r corpus.Expect) bool { return r.Group != "Archive" }
