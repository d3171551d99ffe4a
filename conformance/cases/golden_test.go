// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.json")

const goldenFile = "testdata/golden.json"

// golden is the catalogue as it was last reviewed: what evidence is judged by, and for each case
// digests of the words and lists that make its property and its oracle.
type golden struct {
	CatalogueDigest string             `json:"catalogueDigest"`
	Catalogue       evidence.Catalogue `json:"catalogue"`
	Cases           []goldenCase       `json:"cases"` // in the catalogue's order
}

type goldenCase struct {
	ID       string            `json:"id"`
	Revision int               `json:"revision"`
	Title    string            `json:"title"`
	Meaning  map[string]string `json:"meaning"` // digests; a change of one is another revision
}

// present is the golden list of a suite as it is now.
func present(s conformance.Suite) (golden, error) {
	g := golden{Catalogue: s.Catalogue(), Cases: []goldenCase{}}
	var err error
	if g.CatalogueDigest, err = s.CatalogueDigest(); err != nil {
		return g, err
	}
	for _, c := range s.Cases {
		row := goldenCase{ID: c.ID, Revision: c.Revision, Title: c.Title, Meaning: map[string]string{}}
		for name, v := range map[string]any{"requirement": c.Requirement, "oracle": c.Oracle, "features": c.Features, "oracles": c.Oracles, "kills": c.Kills} {
			text, err := strictjson.Canonical(v)
			if err != nil {
				return g, fmt.Errorf("%s: %s: %w", c.ID, name, err)
			}
			row.Meaning[name] = evidence.Digest(text)
		}
		g.Cases = append(g.Cases, row)
	}
	slices.SortFunc(g.Cases, func(a, b goldenCase) int { return strings.Compare(a.ID, b.ID) })
	return g, nil
}

// unraised are the changes from old to now that nothing announces: a case that means something
// else under its old revision, and another list under the old catalogue id. They must not be
// written as they are.
func unraised(old, now golden) []string {
	var out []string
	raised := map[string]bool{}
	for _, c := range now.Cases {
		was, ok := find(old, c.ID)
		if !ok {
			continue
		}
		if c.Revision < was.Revision {
			out = append(out, fmt.Sprintf("%s: revision %d came after %d: revisions only rise", c.ID, c.Revision, was.Revision))
		}
		raised[c.ID] = c.Revision > was.Revision
		for _, name := range slices.Sorted(maps.Keys(c.Meaning)) {
			// Another mutant that it catches makes a case no other case.
			if name != "kills" && c.Meaning[name] != was.Meaning[name] && !raised[c.ID] {
				out = append(out, fmt.Sprintf("%s: its %s changed and its revision is still %d: raise the revision", c.ID, name, c.Revision))
			}
		}
	}
	if now.Catalogue.ID != old.Catalogue.ID {
		return out
	}
	// Under one id only cases whose revision rose may differ.
	same := func(a, b any) bool {
		x, xerr := strictjson.Canonical(a)
		y, yerr := strictjson.Canonical(b)
		return xerr == nil && yerr == nil && bytes.Equal(x, y)
	}
	list := fmt.Sprintf("under the catalogue id %s", now.Catalogue.ID)
	for _, c := range now.Catalogue.Cases {
		i := slices.IndexFunc(old.Catalogue.Cases, func(o evidence.CaseRef) bool { return o.ID == c.ID })
		switch {
		case i < 0:
			out = append(out, fmt.Sprintf("%s is new %s: change the id", c.ID, list))
		case !raised[c.ID] && !same(c, old.Catalogue.Cases[i]):
			out = append(out, fmt.Sprintf("%s has another tier, images, features or oracles %s: raise its revision, or change the id", c.ID, list))
		}
	}
	for _, c := range old.Catalogue.Cases {
		if _, ok := find(now, c.ID); !ok {
			out = append(out, fmt.Sprintf("%s is gone %s: change the id", c.ID, list))
		}
	}
	if !same(now.Catalogue.Profiles, old.Catalogue.Profiles) {
		out = append(out, "the profiles differ "+list+": change the id")
	}
	return out
}

func find(g golden, id string) (goldenCase, bool) {
	i := slices.IndexFunc(g.Cases, func(c goldenCase) bool { return c.ID == id })
	if i < 0 {
		return goldenCase{}, false
	}
	return g.Cases[i], true
}

// differences says what changed from old to now, case by case, the list itself last.
func differences(old, now golden) []string {
	var out []string
	add := func(what string, was, is any) {
		x, _ := strictjson.Canonical(was) // of values that the golden file holds
		y, _ := strictjson.Canonical(is)
		if !bytes.Equal(x, y) {
			out = append(out, fmt.Sprintf("%s: %s, was %s", what, y, x))
		}
	}
	ref := func(g golden, id string) any {
		for _, c := range g.Catalogue.Cases {
			if c.ID == id {
				return c
			}
		}
		return nil
	}
	ids := map[string]bool{}
	for _, c := range append(slices.Clone(old.Cases), now.Cases...) {
		ids[c.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		was, _ := find(old, id)
		is, _ := find(now, id)
		add(id, was, is)
		add(id+" in the catalogue", ref(old, id), ref(now, id))
	}
	add("profiles", old.Catalogue.Profiles, now.Catalogue.Profiles)
	add("catalogue id", old.Catalogue.ID, now.Catalogue.ID)
	add("catalogue digest", old.CatalogueDigest, now.CatalogueDigest)
	return out
}

// TestGoldenList fails when the catalogue is not the reviewed one. With -update the file is
// rewritten, but only for changes that a revision or the catalogue's id announces.
func TestGoldenList(t *testing.T) {
	now, err := present(suite())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(now, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	before, err := os.ReadFile(goldenFile)
	if err != nil && !(*update && os.IsNotExist(err)) {
		t.Fatal(err)
	}
	var old golden
	if err == nil {
		if err := json.Unmarshal(before, &old); err != nil {
			t.Fatal(err)
		}
		for _, s := range unraised(old, now) {
			t.Error(s)
		}
		if d, err := old.Catalogue.Digest(); err != nil || d != old.CatalogueDigest {
			t.Errorf("%s was edited by hand: its catalogue has the digest %s, it says %s", goldenFile, d, old.CatalogueDigest)
		}
	}
	if bytes.Equal(text, before) {
		return
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(goldenFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("the catalogue is not that of %s (go test ./conformance/cases -run TestGoldenList -update, and review):\n%s", goldenFile, strings.Join(differences(old, now), "\n"))
}

// Nothing changes in silence.
func TestGoldenListNoticesEveryChange(t *testing.T) {
	old, err := present(suite())
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(s *conformance.Suite)
		want   string // of the complaint; "" when the change is announced
	}{
		"nothing":      {func(*conformance.Suite) {}, ""},
		"requirement":  {func(s *conformance.Suite) { s.Cases[0].Requirement += " Mostly." }, "requirement changed and its revision is still 1: raise the revision"},
		"oracle":       {func(s *conformance.Suite) { s.Cases[0].Oracle = "The tenant's own word." }, "oracle changed"},
		"oracles":      {func(s *conformance.Suite) { s.Cases[0].Oracles = nil }, "oracles changed"},
		"features":     {func(s *conformance.Suite) { s.Cases[0].Features = s.Cases[0].Features[:1] }, "features changed"},
		"kills":        {func(s *conformance.Suite) { s.Cases[0].Kills = nil }, ""},
		"tier":         {func(s *conformance.Suite) { s.Cases[0].Tier = conformance.Serial }, "another tier"},
		"images":       {func(s *conformance.Suite) { s.Cases[0].PerImage = !s.Cases[0].PerImage }, "images"},
		"case gone":    {func(s *conformance.Suite) { s.Cases = s.Cases[1:] }, "is gone under the catalogue id"},
		"case renamed": {func(s *conformance.Suite) { s.Cases[0].ID = "FS-98" }, "is new under the catalogue id"},
		"older revision": {func(s *conformance.Suite) {
			i := slices.IndexFunc(s.Cases, func(c conformance.Case) bool { return c.Revision > 1 })
			s.Cases[i].Revision--
		}, "revisions only rise"},
		"announced":            {func(s *conformance.Suite) { s.Cases[0].Requirement += " Mostly."; s.Cases[0].Revision++ }, ""},
		"tier, and a revision": {func(s *conformance.Suite) { s.Cases[0].Tier = conformance.Serial; s.Cases[0].Revision++ }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := suite()
			for i := range s.Cases {
				s.Cases[i].Features, s.Cases[i].Oracles = slices.Clone(s.Cases[i].Features), slices.Clone(s.Cases[i].Oracles)
			}
			tt.change(&s)
			now, err := present(s)
			if err != nil {
				t.Fatal(err)
			}
			if d := differences(old, now); name != "nothing" && len(d) == 0 {
				t.Error("the difference is not printed")
			}
			got := strings.Join(unraised(old, now), "\n")
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("complaints %q, want %q", got, tt.want)
			}
		})
	}
	other := old
	other.Catalogue.ID = "hallmark-other"
	other.Cases = other.Cases[1:]
	if got := unraised(old, other); len(got) > 0 {
		t.Errorf("another list under another id: %q", got)
	}
	profiles := old
	profiles.Catalogue.Profiles = profiles.Catalogue.Profiles[1:]
	if got := unraised(old, profiles); len(got) != 1 || !strings.Contains(got[0], "profiles differ") {
		t.Errorf("another profile under the same id: %q", got)
	}
}
