// SPDX-License-Identifier: Apache-2.0

package evidencetest

import (
	"slices"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Another is a later run by the same people, of the same images unless edit changes them. What
// follows from the edited members is made again: cohort id, arming, report, records, mutation
// evidence and summary. Keys, catalogue and policy are w's.
func (w *World) Another(edit func(p *evidence.Predicate)) (*World, error) {
	out := *w
	text, err := strictjson.Marshal(w.Statement)
	if err != nil {
		return nil, err
	}
	out.Statement = evidence.Statement{}
	if err := strictjson.Unmarshal(text, &out.Statement, strictjson.Limits{Bytes: 16 << 20}); err != nil {
		return nil, err
	}
	p := &out.Statement.Predicate
	p.Run.ID, p.Run.Sequence = randomHex(16), p.Run.Sequence+1
	edit(p)
	if p.Cohort.ID, err = evidence.CohortID(p.Cohort.Descriptor); err != nil {
		return nil, err
	}
	p.Run.Arming.RunID, p.Run.Arming.CohortID, p.Run.Arming.Target, p.Run.Arming.StartedAt = p.Run.ID, p.Cohort.ID, p.Target, p.Run.StartedAt
	report := GinkgoReport(p.Cases)
	if p.Suite.Ginkgo, err = evidence.ReportGinkgo(report, p.Suite.Ginkgo.Version); err != nil {
		return nil, err
	}
	order := make([]int, len(p.Cases))
	for i := range order {
		order[i] = i
	}
	records, err := Reseal(&out.Statement, order)
	if err != nil {
		return nil, err
	}
	bodies := map[string][]byte{evidence.ArtifactRecords: records, evidence.ArtifactGinkgo: report}
	if m := p.MutationEvidence; m != nil {
		m.SuiteDigest, m.CohortID = p.Suite.BinaryDigest, p.Cohort.ID
		file, err := evidence.SealMutation(m.MutationResults, w.Mutation)
		if err != nil {
			return nil, err
		}
		m.Digest, bodies[evidence.ArtifactMutation] = evidence.Digest(file), file
	}
	out.Blobs = slices.Clone(w.Blobs)
	for i, b := range out.Blobs {
		if body, ok := bodies[b.Role]; ok {
			out.Blobs[i].Body = body
		}
	}
	p.Summary = Summary(w.Catalogue, *p)
	return &out, nil
}
