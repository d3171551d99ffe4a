// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"cmp"
	"slices"
	"strings"
)

// Bounds of a statement. They are part of the schema: beyond them evidence is refused.
const (
	MaxSubjects  = 1024
	MaxCases     = 4096
	MaxArtifacts = 4096
	MaxBlob      = 256 << 20 // bytes of one artifact
	maxText      = 4096      // bytes of a free text

	maxMutants      = MaxCases     // of mutation evidence
	maxMutationRows = 4 * MaxCases // so that what is looked up in them is a bounded number of steps
)

// CheckSchema is the gate's step 8: every member has a value that its doc allows. It does not
// judge. Errors are *Denied with schema-version, schema or time-format.
func CheckSchema(p Predicate) error {
	if p.SchemaVersion != SchemaVersion {
		return deny(ReasonSchemaVersion, "%d, want %d", p.SchemaVersion, SchemaVersion)
	}
	c := &checker{}
	c.identity(p)
	c.cohort(p.Cohort)
	c.contents(p)
	c.run(p)
	c.rows(p)
	return c.err
}

// checker keeps the first violation.
type checker struct{ err error }

func (c *checker) fail(r Reason, format string, args ...any) {
	if c.err == nil {
		c.err = deny(r, format, args...)
	}
}

func (c *checker) want(ok bool, where string) {
	if !ok {
		c.fail(ReasonSchema, "%s", where)
	}
}

func (c *checker) digest(s, where string) { c.want(ValidDigest(s), where) }

func (c *checker) text(s, where string) {
	c.want(s != "" && len(s) <= maxText && !strings.ContainsFunc(s, isControl), where)
}

func (c *checker) time(t Timestamp, where string) {
	if _, ok := t.Time(); !ok {
		c.fail(ReasonTimeFormat, "%s", where)
	}
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

func (c *checker) identity(p Predicate) {
	c.text(p.Target.Driver, "target.driver")
	c.text(p.Target.Mode, "target.mode")
	c.text(p.Target.Version, "target.version")
	c.want(sortedUnique(p.Target.Claims), "target.claims")
	c.want(len(p.Profiles) > 0 && sortedUnique(p.Profiles), "profiles")
	for _, w := range p.Waivers {
		c.want(caseIDPattern.MatchString(w.Case) && w.Revision > 0 && wordPattern.MatchString(w.Reason) && w.Bug != "", "waivers")
		c.time(w.Expires, "waivers.expires")
	}
	c.text(p.Issuer.ID, "issuer.id")
	c.text(p.Issuer.Runtime, "issuer.runtime")
	c.want(slices.Contains([]string{RoleCI, RoleRelease, RoleImplementer}, p.Issuer.Role), "issuer.role")
	c.text(p.Suite.Name, "suite.name")
	c.text(p.Suite.Version, "suite.version")
	c.text(p.Suite.Commit, "suite.commit")
	c.text(p.Suite.TreeState, "suite.treeState")
	c.text(p.Suite.CatalogueID, "suite.catalogueId")
	c.digest(p.Suite.BinaryDigest, "suite.binaryDigest")
	c.digest(p.Suite.CatalogueDigest, "suite.catalogueDigest")
	c.text(p.Suite.Ginkgo.Version, "suite.ginkgo.version")
}

func (c *checker) cohort(k Cohort) {
	c.digest(k.ID, "cohort.id")
	d := k.Descriptor
	c.text(d.Arch, "cohort.arch")
	c.text(d.Kernel.Release, "cohort.kernel.release")
	c.text(d.Kernel.Build, "cohort.kernel.build")
	c.want(slices.Contains([]string{"v1", "v2", "hybrid"}, d.CgroupMode), "cohort.cgroupMode")
	c.digest(d.Engine.EngineDigest, "cohort.engine.engineDigest")
	c.digest(d.Engine.ContainerdDigest, "cohort.engine.containerdDigest")
	c.digest(d.Engine.ShimDigest, "cohort.engine.shimDigest")
	c.text(d.Engine.Version, "cohort.engine.version")
	c.digest(d.Runtime.BinaryDigest, "cohort.runtime.binaryDigest")
	c.text(d.Sandbox.Version, "cohort.sandbox.version")
	c.text(d.Sandbox.Platform, "cohort.sandbox.platform")
	c.text(d.Quota.Backend, "cohort.quota.backend")
	c.text(d.Quota.Filesystem, "cohort.quota.filesystem")
}

func (c *checker) contents(p Predicate) {
	n := len(p.Images) + len(p.Binaries)
	c.want(n <= MaxSubjects, "images and binaries: too many")
	c.want(len(p.Images) > 0, "images: none")
	for i, m := range p.Images {
		c.text(m.Name, "images.name")
		c.want(m.Role == ImageWorkload || m.Role == ImageHelper, "images.role")
		c.digest(m.ConfigDigest, "images.configDigest")
		c.digest(m.ManifestDigest, "images.manifestDigest")
		c.want(m.ConfigDigest != m.ManifestDigest, "images: config and manifest digest are one")
		c.want(i == 0 || p.Images[i-1].ConfigDigest < m.ConfigDigest, "images: order")
	}
	c.want(len(workloads(p.Images)) > 0, "images: no workload")
	for i, b := range p.Binaries {
		c.text(b.Name, "binaries.name")
		c.want(wordPattern.MatchString(b.Role), "binaries.role")
		c.digest(b.Digest, "binaries.digest")
		c.want(i == 0 || p.Binaries[i-1].Role < b.Role, "binaries: order")
	}
	c.digest(p.WorkerConfig.Digest, "workerConfig.digest")
	c.digest(p.LaunchProfile.Digest, "launchProfile.digest")
	c.digest(p.Artifacts.Root, "artifacts.root")
	c.want(len(p.Artifacts.Items) <= MaxArtifacts, "artifacts: too many")
	for i, a := range p.Artifacts.Items {
		c.want(namePattern.MatchString(a.Name) && len(a.Name) <= 128, "artifacts.name")
		c.want(wordPattern.MatchString(a.Role), "artifacts.role")
		c.want(mediaPattern.MatchString(a.MediaType), "artifacts.mediaType")
		c.digest(a.Digest, "artifacts.digest")
		c.want(a.Size >= 0 && a.Size <= MaxBlob, "artifacts.size")
		c.want(i == 0 || p.Artifacts.Items[i-1].Name < a.Name, "artifacts: order")
	}
	c.want(len(p.Limitations) > 0, "limitations: none")
	for _, l := range p.Limitations {
		c.text(l, "limitations")
	}
	c.time(p.Validity.NotBefore, "validity.notBefore")
	c.time(p.Validity.NotAfter, "validity.notAfter")
}

func (c *checker) run(p Predicate) {
	r := p.Run
	c.want(validHex(r.ID, 32), "run.id")
	c.time(r.StartedAt, "run.startedAt")
	c.time(r.FinishedAt, "run.finishedAt")
	c.time(r.Arming.StartedAt, "run.arming.startedAt")
	c.time(r.Seal.FinishedAt, "run.seal.finishedAt")
	c.want(r.Nonce == "" || ValidNonce(r.Nonce), "run.nonce")
	c.want(r.Host == "" || ValidDigest(r.Host), "run.host")
	c.want(r.Sequence > 0, "run.sequence")
	c.want(r.Previous == "" || ValidDigest(r.Previous), "run.previous")
	c.digest(r.Arming.CatalogueDigest, "run.arming.catalogueDigest")
	c.digest(r.Arming.CohortID, "run.arming.cohortId")
	c.want(sortedUnique(r.Arming.PlannedCases), "run.arming.plannedCases")
	for i, o := range r.Arming.Oracles {
		c.want(wordPattern.MatchString(o.Oracle), "run.arming.oracles")
		c.want(i == 0 || r.Arming.Oracles[i-1].Oracle < o.Oracle, "run.arming.oracles: order")
	}
	for i, f := range r.Arming.Features {
		c.want(wordPattern.MatchString(f.Feature), "run.arming.features")
		c.want(slices.Contains([]string{FeaturePresent, FeatureAbsent, FeatureUnknown}, f.Observed), "run.arming.features.observed")
		c.want(i == 0 || r.Arming.Features[i-1].Feature < f.Feature, "run.arming.features: order")
	}
	c.digest(r.Seal.Digest, "run.seal.digest")
	if m := p.MutationEvidence; m != nil {
		c.digest(m.Digest, "mutationEvidence.digest")
		c.mutation(m.MutationResults)
	}
}

func (c *checker) mutation(m MutationResults) {
	c.digest(m.SuiteDigest, "mutationEvidence.suiteDigest")
	c.digest(m.CatalogueDigest, "mutationEvidence.catalogueDigest")
	c.digest(m.PatchesDigest, "mutationEvidence.patchesDigest")
	c.digest(m.CohortID, "mutationEvidence.cohortId")
	if len(m.Rows) > maxMutationRows || len(m.Others) > maxMutants {
		c.fail(ReasonSchema, "mutationEvidence: %d rows, %d others", len(m.Rows), len(m.Others))
		return
	}
	c.want(slices.IsSortedFunc(m.Rows, compareMutation), "mutationEvidence.rows: order")
	for _, r := range m.Rows {
		c.text(r.Mutant, "mutationEvidence.rows.mutant")
		c.want(caseIDPattern.MatchString(r.Case), "mutationEvidence.rows.case")
		for _, reason := range []string{r.Expected, r.Observed} { // what they must be, step 12 says
			c.want(len(reason) <= maxText && !strings.ContainsFunc(reason, isControl), "mutationEvidence.rows: reason")
		}
	}
	for i, o := range m.Others {
		c.want(i == 0 || m.Others[i-1].Mutant < o.Mutant, "mutationEvidence.others: order")
		c.want(slices.ContainsFunc(m.Rows, func(r MutationRow) bool { return r.Mutant == o.Mutant }), "mutationEvidence.others: a mutant without a row")
		c.want(len(o.Passed)+len(o.Excused) > 0, "mutationEvidence.others: no case")
		c.want(sortedUnique(o.Passed), "mutationEvidence.others.passed: order")
		// Each case is named once per mutant: caught it, passed, or excused.
		named := map[string]bool{}
		for _, r := range m.Rows {
			named[r.Case] = named[r.Case] || r.Mutant == o.Mutant
		}
		once := func(id, where string) {
			c.want(caseIDPattern.MatchString(id) && !named[id], where)
			named[id] = true
		}
		for _, id := range o.Passed {
			once(id, "mutationEvidence.others.passed")
		}
		for j, e := range o.Excused {
			once(e.Case, "mutationEvidence.others.excused")
			c.want(j == 0 || o.Excused[j-1].Case < e.Case, "mutationEvidence.others.excused: order")
			c.want(slices.Contains(excusable(), e.Status), "mutationEvidence.others.excused.status")
			c.want(wordPattern.MatchString(e.Reason), "mutationEvidence.others.excused.reason")
			c.text(e.Why, "mutationEvidence.others.excused.why")
		}
	}
}

// excusable are the statuses that a case may have beside a mutant which is not its own, or beside
// its worst: all but pass, and waived, since nobody waives anything there.
func excusable() []string {
	return []string{StatusFail, StatusInconclusive, StatusError, StatusNotApplicable, StatusNotRun}
}

func (c *checker) rows(p Predicate) {
	c.want(len(p.Cases) <= MaxCases, "cases: too many")
	for i, r := range p.Cases {
		c.want(caseIDPattern.MatchString(r.ID), "cases.id")
		c.want(r.Revision > 0 && r.Attempts >= 0 && r.DurationMs >= 0, "cases: negative number")
		c.want(r.Reason == "" || wordPattern.MatchString(r.Reason), "cases.reason")
		c.want(sortedUnique(r.Images) && sortedUnique(r.Artifacts), "cases: images or artifacts out of order")
		c.want(sortedUnique(r.Also) && (r.Status != StatusPass || len(r.Also) == 0), "cases.also: order, or a pass with another end")
		for _, a := range r.Also {
			status, reason, _ := strings.Cut(a, ":")
			c.want(slices.Contains(excusable(), status) && wordPattern.MatchString(reason) && a != r.Status+":"+r.Reason, "cases.also")
		}
		for _, d := range r.Images {
			c.digest(d, "cases.images")
		}
		for _, d := range r.Artifacts {
			c.digest(d, "cases.artifacts")
		}
		// Equal neighbours are left to the verdict, which has a code for them.
		c.want(i == 0 || p.Cases[i-1].ID <= r.ID, "cases: order")
	}
}

func compareMutation(a, b MutationRow) int {
	return cmp.Or(cmp.Compare(a.Mutant, b.Mutant), cmp.Compare(a.Case, b.Case))
}

// workloads returns the config digests of the workload images.
func workloads(images []Image) []string {
	var out []string
	for _, m := range images {
		if m.Role == ImageWorkload {
			out = append(out, m.ConfigDigest)
		}
	}
	return out
}

// Subjects returns the subjects that images and binaries demand, in their order.
func Subjects(images []Image, binaries []Binary) []Subject {
	var out []Subject
	for _, m := range images {
		out = append(out, Subject{
			Name:        m.Name,
			Digest:      DigestSet{SHA256: strings.TrimPrefix(m.ConfigDigest, digestPrefix)},
			Annotations: map[string]string{"manifestDigest": m.ManifestDigest},
		})
	}
	for _, b := range binaries {
		out = append(out, Subject{Name: b.Name, Digest: DigestSet{SHA256: strings.TrimPrefix(b.Digest, digestPrefix)}})
	}
	return out
}
