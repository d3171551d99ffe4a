// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Blob is a raw artifact on its way into a bundle. Names are unique, lower case, like
// "ginkgo.json" or "cases/fs-02/tree.txt".
type Blob struct {
	Name      string
	Role      string
	MediaType string
	Body      []byte
}

// MakeBundle completes st (types, subjects, artifact list with the derived test-result
// statement), checks it against the schema, and signs it once per signer. It refuses an
// unsealed run, since [CheckSchema] does. It does not judge: an incomplete or failed run gets
// its bundle too, and the gate denies it.
func MakeBundle(st Statement, blobs []Blob, signers ...Signer) (*Bundle, Statement, error) {
	if len(signers) == 0 || len(signers) > maxSigners {
		return nil, st, fmt.Errorf("make bundle: %d signers", len(signers))
	}
	p := &st.Predicate
	st.Type, st.PredicateType, p.SchemaVersion = StatementType, PredicateType, SchemaVersion
	st.Subject = Subjects(p.Images, p.Binaries)
	derived, err := TestResult(st)
	if err != nil {
		return nil, st, err
	}
	blobs = append(slices.Clone(blobs), Blob{
		Name: "test-result.json", Role: ArtifactTestResult, MediaType: "application/vnd.in-toto+json", Body: derived,
	})
	slices.SortFunc(blobs, func(a, b Blob) int { return strings.Compare(a.Name, b.Name) })
	files := map[string][]byte{}
	p.Artifacts.Items = nil
	for _, b := range blobs {
		d := Digest(b.Body)
		files[blobName(d)] = b.Body
		p.Artifacts.Items = append(p.Artifacts.Items, Artifact{
			Name: b.Name, Role: b.Role, MediaType: b.MediaType, Digest: d, Size: int64(len(b.Body)),
		})
	}
	if p.Artifacts.Root, err = artifactsRoot(p.Artifacts.Items); err != nil {
		return nil, st, err
	}
	if err := CheckSchema(*p); err != nil {
		return nil, st, fmt.Errorf("make bundle: %w", err)
	}
	layout, err := LayoutFiles(p.Artifacts.Items)
	if err != nil {
		return nil, st, err
	}
	for name, data := range layout {
		files[name] = data
	}
	payload, err := strictjson.Marshal(st)
	if err != nil {
		return nil, st, fmt.Errorf("make bundle: %w", err)
	}
	for i, s := range signers {
		name := evidenceFile
		if i > 0 {
			name = fmt.Sprintf("evidence.%d.sigstore.json", i+1)
		}
		if files[name], err = SealBundle(payload, s); err != nil {
			return nil, st, err
		}
	}
	return NewBundle(files), st, nil
}

// WriteBundle is [MakeBundle] into a directory, which must be absent or empty. It returns the
// statement as it was signed.
func WriteBundle(dir string, st Statement, blobs []Blob, signers ...Signer) (Statement, error) {
	b, done, err := MakeBundle(st, blobs, signers...)
	if err != nil {
		return done, err
	}
	return done, b.Write(dir)
}

// SealMutation sorts, checks and signs the results of a mutation run. The returned bytes are the artifact of
// role [ArtifactMutation], and their digest is MutationEvidence.Digest.
func SealMutation(r MutationResults, s Signer) ([]byte, error) {
	slices.SortFunc(r.Rows, compareMutation)
	slices.SortFunc(r.Others, func(a, b MutationOthers) int { return strings.Compare(a.Mutant, b.Mutant) })
	c := &checker{}
	if c.mutation(r); c.err != nil {
		return nil, fmt.Errorf("mutation statement: %w", c.err)
	}
	payload, err := strictjson.Marshal(mutationStatement{
		Type: StatementType, PredicateType: MutationPredicateType, Predicate: r,
		Subject: []Subject{{Name: "suite", Digest: DigestSet{SHA256: strings.TrimPrefix(r.SuiteDigest, digestPrefix)}}},
	})
	if err != nil {
		return nil, fmt.Errorf("mutation statement: %w", err)
	}
	return SealEnvelope(InTotoType, payload, s)
}

type mutationStatement struct {
	Type          string          `json:"_type"`
	Subject       []Subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     MutationResults `json:"predicate"`
}

// testResult is in-toto test-result v0.1.
type testResult struct {
	Result        string               `json:"result"`
	Configuration []resourceDescriptor `json:"configuration"`
	PassedTests   []string             `json:"passedTests"`
	WarnedTests   []string             `json:"warnedTests"`
	FailedTests   []string             `json:"failedTests"`
}

type resourceDescriptor struct {
	Name   string    `json:"name,omitempty"`
	URI    string    `json:"uri,omitempty"`
	Digest DigestSet `json:"digest"`
}

// TestResult derives the in-toto test-result v0.1 statement from st. It is a projection for
// other tools: the gate computes it again and compares bytes. Every case that is not a pass
// counts as failed there, and so does a run whose clean-up failed, which no row shows.
func TestResult(st Statement) ([]byte, error) {
	p := st.Predicate
	r := testResult{Result: "FAILED", Configuration: []resourceDescriptor{
		{Name: "catalogue", Digest: DigestSet{SHA256: strings.TrimPrefix(p.Suite.CatalogueDigest, digestPrefix)}},
		{Name: "suite", Digest: DigestSet{SHA256: strings.TrimPrefix(p.Suite.BinaryDigest, digestPrefix)}},
		{Name: "cohort", Digest: DigestSet{SHA256: strings.TrimPrefix(p.Cohort.ID, digestPrefix)}},
	}}
	if g := p.Suite.Ginkgo; p.Summary.Verdict == Conformant && g.Succeeded && len(g.SpecialFailures) == 0 {
		r.Result = "PASSED"
	}
	for _, c := range p.Cases {
		if c.Status == StatusPass {
			r.PassedTests = append(r.PassedTests, c.ID)
		} else {
			r.FailedTests = append(r.FailedTests, c.ID)
		}
	}
	b, err := strictjson.Marshal(struct {
		Type          string     `json:"_type"`
		Subject       []Subject  `json:"subject"`
		PredicateType string     `json:"predicateType"`
		Predicate     testResult `json:"predicate"`
	}{StatementType, Subjects(p.Images, p.Binaries), TestResultType, r})
	if err != nil {
		return nil, fmt.Errorf("test-result statement: %w", err)
	}
	return b, nil
}
