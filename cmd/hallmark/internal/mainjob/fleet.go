// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/evidencecmd"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// member is one cohort that the release needs.
type member struct {
	file   runcmd.CohortFile
	place  evidence.FleetCohort
	cohort *evidence.Cohort // as it was measured here; nil when it is not of this host
	why    string           // that it is not
	bundle string           // directory or archive; "" without one
}

func fleetCommand(suite conformance.Suite) *cobra.Command {
	var all bool
	var tier string
	var given, keys []string
	c := &cobra.Command{
		Use:   "fleet [NAME...]",
		Short: "Run the suite on the cohorts of ci/cohorts, and decide about all of them in one release",
		Long: "Run the reference worker on each cohort of ci/cohorts that a release needs, in the lab, one after the other,\n" +
			"sign the evidence of each, and ask the gate once: an image is released when every cohort has admitting\n" +
			"evidence of it; else the decision names the cohorts that keep it back. Without a NAME the release needs the\n" +
			"cohorts whose file expects a conformant worker, with --all those too that are known to fail. A cohort of\n" +
			"another host comes with --evidence and --add-key. Mutation evidence is recorded and not demanded.\n\n" +
			"Exit status: 0 released, 1 kept back, 2 interrupted, 3 usage or engine error.",
		RunE: func(cmd *cobra.Command, names []string) error {
			t := conformance.Tier(tier)
			if t != conformance.Smoke && t != conformance.Full {
				return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--tier is %q", tier), Remedy: "use full (with smoke), or smoke for a quick look, of which the gate will say what is missing"}
			}
			j := newJob(cmd, suite, filepath.Join("out", "fleet"))
			bundles, err := namedBundles(given)
			if err != nil {
				return err
			}
			return j.fleet(cmd.Context(), names, all, t, bundles, keys)
		},
	}
	f := c.Flags()
	f.BoolVar(&all, "all", false, "need the cohorts too whose file does not expect a conformant worker")
	f.StringVar(&tier, "tier", string(conformance.Full), "full (with smoke) or smoke")
	f.StringArrayVar(&given, "evidence", nil, "NAME=BUNDLE: evidence of this cohort from elsewhere, instead of a run here (repeatable)")
	f.StringArrayVar(&keys, "add-key", nil, "let the key in that signed such evidence: ROLE,IDENTITY,FILE, for example ci,vm-lab,evidence.pub (repeatable)")
	return c
}

// namedBundles reads NAME=BUNDLE; a path is of whoever calls, not of the repository.
func namedBundles(given []string) (map[string]string, error) {
	out := map[string]string{}
	for _, g := range given {
		name, path, ok := strings.Cut(g, "=")
		if !ok || name == "" || path == "" || out[name] != "" {
			return nil, &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--evidence is %q", g), Remedy: "write NAME=BUNDLE, once for each cohort"}
		}
		full, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(full)
		}
		if err != nil {
			return nil, &exit.Error{Status: exit.Failed, Sentence: "evidence cannot be found", Cause: err, Remedy: "name a bundle with --evidence NAME=BUNDLE"}
		}
		out[name] = full
	}
	return out, nil
}

func (j *job) fleet(ctx context.Context, names []string, all bool, tier conformance.Tier, bundles map[string]string, keys []string) error {
	return j.within(ctx, func(ctx context.Context) error {
		if err := j.outside(bundles, keys); err != nil {
			return err
		}
		members, err := j.members(ctx, names, all, bundles)
		if err != nil {
			return err
		}
		if err := j.clear(); err != nil {
			return err
		}
		r := release{dir: j.out, catalogue: j.suite.Catalogue(), keys: keys}
		for _, m := range members {
			r.fleet = append(r.fleet, m.place)
		}
		j.step("keys and trust policy of %d cohorts in %s", len(members), j.relative(j.out))
		if err := r.init(); err != nil {
			return err
		}
		for i := range members {
			if err := j.runMember(ctx, &members[i], tier); err != nil {
				return err
			}
			if members[i].bundle != "" {
				r.bundles = append(r.bundles, members[i].bundle)
			}
		}
		j.step("gate, over %d bundles", len(r.bundles))
		decision, err := r.decide()
		if err != nil {
			return err
		}
		return j.released(members, decision)
	})
}

// outside refuses what is given and lies in the folder that this command clears.
func (j *job) outside(bundles map[string]string, keys []string) error {
	given := slices.Collect(maps.Values(bundles))
	for _, k := range keys {
		if parts := strings.SplitN(k, ",", 3); len(parts) == 3 {
			given = append(given, parts[2])
		}
	}
	for _, path := range given {
		full, err := filepath.Abs(path)
		if err != nil {
			return failed("a path cannot be followed", err)
		}
		if rel, err := filepath.Rel(j.out, full); err == nil && filepath.IsLocal(rel) {
			return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("%s is in the folder of the results, which is cleared first", path), Remedy: "copy evidence and key elsewhere"}
		}
	}
	return nil
}

// members are the cohorts of the release, in the order of their names, each with how it is told from the
// others: by the runtime that the lab has under its file's name, or that the evidence names which is given.
func (j *job) members(ctx context.Context, names []string, all bool, bundles map[string]string) ([]member, error) {
	files, err := runcmd.WorkerCohorts(filepath.Join(j.repo, "ci", "cohorts"))
	if err != nil {
		return nil, failed("the cohort files cannot be used", err)
	}
	known := map[string]bool{}
	var out []member
	for _, f := range files {
		known[f.Name] = true
		if len(names) == 0 && (all || f.Verdict == string(evidence.Conformant)) || slices.Contains(names, f.Name) {
			out = append(out, member{file: f, place: f.Fleet(), bundle: bundles[f.Name]})
		}
	}
	for _, name := range slices.Concat(names, slices.Sorted(maps.Keys(bundles))) {
		if !known[name] {
			return nil, &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("ci/cohorts has no cohort %q of the reference worker", name), Remedy: "use " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")}
		}
		if !slices.ContainsFunc(out, func(m member) bool { return m.file.Name == name }) {
			return nil, &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("the release does not need the cohort %q", name), Remedy: "name it, or use --all"}
		}
	}
	for i := range out {
		m := &out[i]
		if m.bundle != "" {
			m.place.SandboxBinary = runtimeOf(m.bundle)
			continue
		}
		runtime, ok := j.lab.Runtimes[m.file.Requirements.Runtime]
		if !ok {
			m.why = j.lab.Missing[m.file.Requirements.Runtime]
			continue
		}
		c, err := j.measure(ctx, runtime.Name)
		if err != nil {
			return nil, err
		}
		if err := m.file.Requirements.Agree(c); err != nil {
			m.why = err.Error()
			continue
		}
		m.cohort, m.place.SandboxBinary = &c, c.Descriptor.Runtime.BinaryDigest
	}
	return out, nil
}

// runtimeOf is the runtime that a bundle says it is of, or "": whoever gives it for a cohort says that this is
// the cohort's. The gate holds the signed cohort against it, as against every other requirement.
func runtimeOf(bundle string) string {
	b, err := gate.ReadBundle(bundle, evidence.AdmitDepth)
	if err != nil {
		return ""
	}
	st, _, err := evidence.UnverifiedStatement(b)
	if err != nil {
		return ""
	}
	digest := st.Predicate.Cohort.Descriptor.Runtime.BinaryDigest
	if !evidence.ValidDigest(digest) {
		return ""
	}
	return digest
}

// runMember runs the suite where that can be done here. What it comes to is for the gate to say.
func (j *job) runMember(ctx context.Context, m *member, tier conformance.Tier) error {
	name := m.file.Name
	switch {
	case m.bundle != "":
		j.step("cohort %s: the evidence in %s", name, j.relative(m.bundle))
		return nil
	case m.cohort == nil:
		j.step("cohort %s: not of this host: %s", name, m.why)
		return nil
	}
	j.step("cohort %s: suite, tier %s, on %d images", name, tier, len(j.workloads))
	out := filepath.Join(j.out, name)
	res, err := runcmd.Run(ctx, runcmd.Params{
		Suite: j.suite, File: m.file, Lab: j.lab, Cohort: m.cohort, Workloads: j.workloads, Tier: tier, Procs: runcmd.DefaultProcs(), Out: out,
		Profiles: m.place.Profiles, KeyFile: filepath.Join(j.out, gate.EvidenceKeyFile),
		Issuer:   evidence.Issuer{ID: issuerID, Role: evidence.RoleCI, Runtime: "hallmark-reference"},
		Progress: j.steps, Live: j.live, Command: []string{"hallmark", "fleet", name},
	})
	if err != nil {
		return err
	}
	if res.Interrupted {
		return ctx.Err()
	}
	if res.Bundle == "" {
		m.why = res.Unsigned
		j.step("cohort %s: %s, and no evidence: %s", name, res.Report.Verdict, res.Unsigned)
		return nil
	}
	m.bundle = filepath.Join(out, "bundle")
	j.step("cohort %s: %s, %d differences from what its file expects; %s", name, res.Report.Verdict, len(res.Differences), j.relative(out))
	return nil
}

// release is one decision about the evidence of a fleet, under a policy of its own.
type release struct {
	dir       string // new or empty; gets keys, policy, memory and pins
	catalogue evidence.Catalogue
	fleet     []evidence.FleetCohort // sorted by name
	keys      []string               // that signed evidence elsewhere, see --add-key
	bundles   []string
}

// init makes the keys and the policy.
func (r release) init() error {
	now := time.Now()
	p, err := gate.Init(gate.InitConfig{
		Dir: r.dir, Identity: issuerID, Role: evidence.RoleCI, Profiles: profilesOf(r.fleet), Catalogue: r.catalogue,
		Mutation: evidence.MutationRecorded, Fleet: r.fleet, Lifetime: throwAwayLifetime, Now: now,
	})
	if err != nil {
		return failed("the trust policy cannot be made", err)
	}
	if len(r.keys) == 0 {
		return nil
	}
	own := len(p.Keys)
	for _, k := range r.keys {
		if err := evidencecmd.AddKey(&p, k); err != nil {
			return err
		}
	}
	for i := range p.Keys[own:] {
		// What they signed is there already; how old it may be, the policy says of the evidence.
		p.Keys[own+i].NotBefore = evidence.At(now.Add(-time.Duration(p.MaxAgeSeconds) * time.Second))
	}
	root, err := signing.Open(context.Background(), filepath.Join(r.dir, gate.RootKeyFile), nil)
	if err != nil {
		return failed("the root key cannot be read", err)
	}
	text, err := evidence.SignPolicy(p, root)
	if err == nil {
		err = evidence.WriteDurable(filepath.Join(r.dir, gate.TrustFile), text, 0o644)
	}
	if err != nil {
		return failed("the trust policy cannot be signed", err)
	}
	return nil
}

// profilesOf are the profiles that any cohort of the fleet is judged by. The policy's own are not used
// for a cohort of a fleet.
func profilesOf(fleet []evidence.FleetCohort) []string {
	var out []string
	for _, c := range fleet {
		out = append(out, c.Profiles...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r release) decide() (gate.Result, error) {
	if len(r.bundles) == 0 {
		return gate.Result{}, &exit.Error{Status: exit.Incomplete, Sentence: "no cohort of the release has evidence", Remedy: "read what each came to, above"}
	}
	d, err := gate.Run(gate.Config{
		Root: filepath.Join(r.dir, gate.RootPublicFile), Trust: filepath.Join(r.dir, gate.TrustFile), Bundles: r.bundles,
		Key: filepath.Join(r.dir, gate.GateKeyFile), State: filepath.Join(r.dir, gate.StateDir), Out: filepath.Join(r.dir, gate.PinsFile),
		Catalogue: r.catalogue, Now: time.Now(),
	})
	if err != nil {
		return d, failed("the gate cannot decide", err)
	}
	return d, nil
}

// released prints the decision: every cohort and every image by name.
func (j *job) released(members []member, d gate.Result) error {
	var b strings.Builder
	word := "kept back"
	if d.Admitted {
		word = "released"
	}
	fmt.Fprintf(&b, "%s for %d cohorts\n", word, len(d.Fleet.Cohorts))
	evidencecmd.PrintRelease(&b, d.Fleet)
	for _, m := range members {
		if m.bundle == "" {
			fmt.Fprintf(&b, "  no evidence of %s: %s\n", m.file.Name, m.why)
		}
	}
	out := j.relative(j.out)
	if d.Admitted {
		fmt.Fprintf(&b, "pins       %s/%s\n", out, gate.PinsFile)
	}
	fmt.Fprintf(&b, "decision   %s/%s/%s\n", out, gate.StateDir, gate.RecordFile)
	if _, err := fmt.Fprint(j.answer, b.String()); err != nil || d.Admitted {
		return err
	}
	block, _ := d.Fleet.Blocks()
	reason := d.Reason
	if reason == "" {
		reason = block.Reason
	}
	if reason == "" {
		return errors.New("the gate neither releases nor denies")
	}
	return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("the gate keeps the images back (%s)", reason), Remedy: reason.Remedy() + "; each cohort's report is in " + out + "/NAME/report.html"}
}
