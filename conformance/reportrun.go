// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// report is r as people and scripts read it.
func (r *result) report(o Options, p plan, j evidence.Judgement) (Report, error) {
	rep := Report{
		Schema: ReportSchema, Verdict: j.Verdict, Reasons: orEmpty(slices.Clone(r.incomplete)), Findings: append([]evidence.Finding{}, j.Findings...),
		Interrupted: r.interrupted, Cohort: p.CohortID, RunID: p.RunID, Seed: p.Seed, Tier: o.Tier, Profiles: o.profiles(), Procs: p.Procs,
		Command: o.About.command(p.Seed), StartedAt: string(evidence.At(r.started)), FinishedAt: string(evidence.At(r.finished)),
		Suite: ReportSuite{Version: buildinfo.Version, Commit: buildinfo.Commit(), TreeState: buildinfo.TreeState(),
			CatalogueID: CatalogueID, Catalogue: p.Catalogue},
		Features: []FeatureRecord{}, Workloads: p.Workloads, Images: []ReportImage{}, Waived: []string{}, Oracles: []OracleRecord{}, Limitations: limitations,
	}
	if r.run.setup != nil {
		rep.Target, rep.Oracles = &r.run.setup.Target, r.run.setup.Oracles
		rep.Features = append(rep.Features, r.run.setup.Features...)
	}
	names := o.About.Names
	if o.Evidence != nil {
		rep.Limitations = o.Evidence.Limitations
		rep.CohortFacts = facts(o.Evidence.Cohort)
		names = map[string]string{}
		for _, m := range o.Evidence.Images {
			names[m.ConfigDigest] = m.Name
		}
	} else if o.About.Cohort != nil {
		rep.CohortFacts = facts(*o.About.Cohort)
	}
	for _, w := range p.Workloads {
		rep.Images = append(rep.Images, ReportImage{names[w], w})
	}
	// A run that was narrowed, interrupted or not sealed shows nothing about the whole; what its
	// cases found stands in their rows.
	if len(r.incomplete) > 0 {
		rep.Verdict = evidence.Incomplete
	}
	for _, f := range j.Findings {
		rep.Reasons = append(rep.Reasons, strings.TrimSpace(fmt.Sprintf("%s %s: %s", f.Case, f.Code, f.Text)))
	}
	for _, c := range o.Suite.Cases {
		i := slices.IndexFunc(r.records, func(rec Record) bool { return rec.ID == c.ID })
		row := reportCase(c, r.records[i]) // collect gave every case one
		rep.Cases = append(rep.Cases, row)
		count(&rep.Counts, row.Status)
		if row.Status == Waived {
			rep.Waived = append(rep.Waived, row.ID)
		}
	}
	rep.Families = families(rep.Cases, o.Suite.Families)
	var err error
	rep.Artifacts, err = r.runArtifacts()
	return rep, err
}

// limitations are those of a run without evidence of its own words.
var limitations = []string{
	"Shows what these cases observed on this cohort in this run, and nothing else: no case, no statement.",
	"Host root, the container engine itself and whoever holds an admitted signing key are out of scope.",
	"Timing and speculative side channels are not measured.",
}

// command repeats the run with the same order and attacks.
func (a About) command(seed int64) []string {
	seeded := func(arg string) bool { return strings.HasPrefix(arg, "--seed") }
	if len(a.Command) == 0 || slices.ContainsFunc(a.Command, seeded) {
		return orEmpty(a.Command)
	}
	return append(slices.Clone(a.Command), fmt.Sprintf("--seed=%d", seed))
}

func facts(c evidence.Cohort) *CohortFacts {
	d := c.Descriptor
	f := &CohortFacts{
		Arch: d.Arch, Kernel: d.Kernel.Release, KernelBuild: d.Kernel.Build, CgroupMode: d.CgroupMode,
		Engine: d.Engine.Version, StorageDriver: d.Engine.StorageDriver, ImageStore: d.Engine.ImageStore,
		Sandbox: d.Sandbox.Version, SandboxDigest: d.Runtime.BinaryDigest, SandboxArgs: orEmpty(d.Runtime.Args), Platform: d.Sandbox.Platform,
		Quota: d.Quota.Backend, Filesystem: d.Quota.Filesystem, Capabilities: map[string]string{},
	}
	for name, value := range c.Capabilities {
		f.Capabilities[name] = value
	}
	return f
}

func reportCase(c Case, rec Record) ReportCase {
	row := ReportCase{
		ID: c.ID, Title: c.Title, Tier: c.Tier, Revision: rec.Revision, Status: rec.Status, Reason: rec.Reason, Text: rec.Text,
		Attempts: rec.Attempts, StartedAt: rec.StartedAt, DurationMs: rec.DurationMs,
		Mutants: []string{}, Kills: []ReportKill{}, Workloads: []ReportExecution{},
		Requirement: c.Requirement, Threat: c.Threat, Attack: c.Attack, Witness: c.Witness, Oracle: c.Oracle, Precedent: c.Precedent,
		Features: append([]Feature{}, c.Features...), Needs: append([]Part{}, c.Needs...), Oracles: append([]Oracle{}, c.Oracles...),
		PerImage: c.PerImage, Control: c.Control, Exclusive: c.Exclusive, TimeoutMs: c.Timeout.Milliseconds(),
	}
	for _, k := range c.Kills {
		row.Mutants = append(row.Mutants, k.Mutant)
		row.Kills = append(row.Kills, ReportKill(k))
	}
	for _, e := range rec.Workloads {
		x := ReportExecution{Execution: e, Failed: []ReportFailure{}, Artifacts: []ReportArtifact{}}
		for _, f := range e.Failures {
			reason, text, _ := strings.Cut(f, ": ") // a reason is a code: it holds no colon
			x.Failed = append(x.Failed, ReportFailure{reason, text})
		}
		for _, b := range e.Artifacts {
			x.Artifacts = append(x.Artifacts, ReportArtifact{
				Name: b.Name, Role: evidence.ArtifactOracle, MediaType: mediaBytes, Digest: b.Digest, Size: b.Size,
				Path: path.Join("raw", blobsDir, strings.TrimPrefix(b.Digest, "sha256:")),
			})
		}
		row.Workloads = append(row.Workloads, x)
	}
	return row
}

// family is the prefix of a case's id: "FS" of "FS-02".
func family(id string) string {
	prefix, _, _ := strings.Cut(id, "-")
	return prefix
}

// families sums rows up, in the order in which their families come.
func families(rows []ReportCase, names map[string]string) []ReportFamily {
	out := []ReportFamily{}
	for _, c := range rows {
		prefix := family(c.ID)
		i := slices.IndexFunc(out, func(f ReportFamily) bool { return f.Prefix == prefix })
		if i < 0 {
			i = len(out)
			out = append(out, ReportFamily{Prefix: prefix, Name: names[prefix]})
		}
		count(&out[i].Counts, c.Status)
		out[i].DurationMs += c.DurationMs
	}
	return out
}

func count(c *evidence.Counts, s Status) {
	c.Total++
	if n := map[Status]*int64{Pass: &c.Pass, Fail: &c.Fail, Inconclusive: &c.Inconclusive, Errored: &c.Error,
		NotApplicable: &c.NotApplicable, NotRun: &c.NotRun, Waived: &c.Waived}[s]; n != nil {
		*n++
	}
}

// runArtifacts describes the raw files of the run as a whole. One that a broken run did not
// get to write is left out.
func (r *result) runArtifacts() ([]ReportArtifact, error) {
	sources, err := r.runSources()
	if err != nil {
		return nil, err
	}
	out := []ReportArtifact{}
	for _, s := range sources {
		a, err := describe(filepath.Join(r.raw, s.path))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read artifact %s: %w", s.name, err)
		}
		a.Name, a.Role, a.MediaType, a.Path = s.name, s.role, s.media, path.Join("raw", filepath.ToSlash(s.path))
		out = append(out, a)
	}
	return out, nil
}

func describe(file string) (ReportArtifact, error) {
	f, err := os.Open(file)
	if err != nil {
		return ReportArtifact{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return ReportArtifact{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: n}, err
}
