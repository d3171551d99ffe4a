// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// CatalogueID names the golden list that this module holds. It changes with the list.
const CatalogueID = "hallmark-2026.4"

// Catalogue returns the golden list of s as evidence spells it, with its profiles.
func (s Suite) Catalogue() evidence.Catalogue {
	cat := evidence.Catalogue{ID: CatalogueID}
	for _, c := range s.Cases {
		ref := evidence.CaseRef{ID: c.ID, Revision: int64(c.Revision), Tier: string(c.Tier), PerImage: c.PerImage, Features: []string{}, Oracles: []string{}}
		for _, f := range c.Features {
			ref.Features = append(ref.Features, string(f))
		}
		for _, o := range c.Oracles {
			ref.Oracles = append(ref.Oracles, string(o))
		}
		cat.Cases = append(cat.Cases, ref)
	}
	cat.Profiles = profiles()
	cat.Sort()
	return cat
}

// CatalogueDigest is the digest of [Suite.Catalogue].
func (s Suite) CatalogueDigest() (string, error) { return s.Catalogue().Digest() }

// row is r as evidence spells it. Over several images a witness counts as often as it did in
// the image where it counted least, and an observation carries its workload.
func (r Record) row() evidence.CaseRow {
	row := evidence.CaseRow{
		ID: r.ID, Revision: int64(r.Revision), Status: string(r.Status), Reason: r.Reason, Attempts: int64(r.Attempts), DurationMs: r.DurationMs,
		Images: []string{}, Witness: map[string]int64{}, Observations: map[string]jsontext.Value{}, Artifacts: []string{}, Also: r.also(),
	}
	perImage := map[string]map[string]json.RawMessage{}
	for i, e := range r.Workloads {
		row.Images = append(row.Images, e.Workload)
		for name, n := range e.Witness {
			switch had, ok := row.Witness[name]; {
			case i == 0:
				row.Witness[name] = n
			case !ok:
				row.Witness[name] = 0 // it did not count in an earlier image
			default:
				row.Witness[name] = min(had, n)
			}
		}
		for name := range row.Witness {
			if _, ok := e.Witness[name]; !ok {
				row.Witness[name] = 0
			}
		}
		for name, v := range e.Observations {
			if perImage[name] == nil {
				perImage[name] = map[string]json.RawMessage{}
			}
			perImage[name][e.Workload] = v
		}
		for _, a := range e.Artifacts {
			row.Artifacts = append(row.Artifacts, a.Digest)
		}
	}
	for name, by := range perImage {
		v, err := json.Marshal(by) // raw messages of a map: cannot fail
		if len(r.Workloads) == 1 {
			v, err = by[r.Workloads[0].Workload], nil
		}
		if err == nil {
			row.Observations[name] = jsontext.Value(v)
		}
	}
	slices.Sort(row.Images)
	slices.Sort(row.Artifacts)
	row.Artifacts = slices.Compact(row.Artifacts)
	return row
}

// also is what r came to beside its own status and reason, in any image: the ends that its worst
// hides, and every failure.
func (r Record) also() []string {
	own, ends := string(r.Status)+":"+r.Reason, map[string]bool{}
	for _, e := range r.Workloads {
		if e.Status != Pass {
			ends[string(e.Status)+":"+e.Reason] = true
		}
		if e.Ended != "" {
			ends[e.Ended] = true
		}
		for _, f := range e.Failures {
			reason, _, _ := strings.Cut(f, ": ")
			ends[string(Fail)+":"+reason] = true
		}
	}
	delete(ends, own)
	return orEmpty(slices.Sorted(maps.Keys(ends)))
}

// encodeObservation encodes v as evidence wants it: RFC 8785, integers only, no null. A nil
// list or map is an empty one.
func encodeObservation(v any) (json.RawMessage, error) {
	b, err := strictjson.Canonical(v)
	if err != nil {
		return nil, err
	}
	dec := jsontext.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		if tok.Kind() == 'n' {
			return nil, errors.New("null is no observation")
		}
	}
}
