// SPDX-License-Identifier: Apache-2.0

// Package evidencetest makes synthetic evidence for tests: a conformant statement of a made-up
// catalogue with its artifacts, fresh keys and a policy that admits it. Nothing in it was
// measured, and only tests import it.
package evidencetest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// World is a conformant run and everybody who has a key.
type World struct {
	Now       time.Time
	Catalogue evidence.Catalogue
	Statement evidence.Statement
	Blobs     []evidence.Blob
	Policy    evidence.TrustPolicy

	Root, Evidence, Gate, Mutation *signing.Signer
}

// New makes a world around now. Keys and ids are random per call.
func New(now time.Time) (*World, error) { return of(now, catalogue()) }

// NewOf is New with a small catalogue that edit has changed.
func NewOf(now time.Time, edit func(*evidence.Catalogue)) (*World, error) {
	c := catalogue()
	edit(&c)
	return of(now, c)
}

// NewWide is New with n cases beside those of the small catalogue, at most 900: as much as a whole
// suite says.
func NewWide(now time.Time, n int) (*World, error) {
	c := catalogue()
	for i := range n {
		c.Cases = append(c.Cases, evidence.CaseRef{
			ID: fmt.Sprintf("XW-%03d", i), Revision: 1, Tier: "full", Features: []string{"exec"}, Oracles: []string{"cgroup"}, PerImage: true,
		})
	}
	slices.SortFunc(c.Cases, func(a, b evidence.CaseRef) int { return strings.Compare(a.ID, b.ID) })
	return of(now, c)
}

func of(now time.Time, c evidence.Catalogue) (*World, error) {
	w := &World{Now: now.UTC().Truncate(time.Second), Catalogue: c}
	for _, s := range []**signing.Signer{&w.Root, &w.Evidence, &w.Gate, &w.Mutation} {
		k, err := signing.Throwaway()
		if err != nil {
			return nil, err
		}
		*s = k
	}
	if err := w.run(); err != nil {
		return nil, err
	}
	w.Policy = evidence.TrustPolicy{
		SchemaVersion: evidence.SchemaVersion, Version: 1, Expires: w.at(30 * 24 * time.Hour),
		Thresholds: map[string]int64{evidence.RoleCI: 1}, MaxAgeSeconds: 14 * 86400,
		MaxValiditySeconds: 90 * 86400, ClockSkewSeconds: 60, Profiles: []string{"quota"},
		Catalogue: w.Catalogue, MutationEvidence: evidence.MutationRequired,
		RequiredCapabilities: map[string]string{"sentry.openat2": "ENOSYS"},
	}
	for role, k := range map[string]*signing.Signer{
		evidence.RoleCI: w.Evidence, evidence.RoleGate: w.Gate, evidence.RoleMutation: w.Mutation,
	} {
		w.Policy.Keys = append(w.Policy.Keys, Key(k, role, "ci.example", w.Now))
	}
	evidence.SortPolicyKeys(w.Policy.Keys)
	return w, nil
}

// Key is a policy entry for every cohort, valid a year around now.
func Key(s *signing.Signer, role, identity string, now time.Time) evidence.PolicyKey {
	return evidence.PolicyKey{
		SPKIDigest: s.PublicKey().Digest(), SPKI: s.PublicKey().SPKI(), Algorithm: s.PublicKey().Algorithm(),
		Role: role, Identity: identity, Cohorts: "*",
		NotBefore: evidence.At(now.AddDate(-1, 0, 0)), NotAfter: evidence.At(now.AddDate(1, 0, 0)),
	}
}

// Trust signs w's policy with its root.
func (w *World) Trust() ([]byte, error) { return evidence.SignPolicy(w.Policy, w.Root) }

// Bundle makes w's bundle.
func (w *World) Bundle() (*evidence.Bundle, error) {
	b, _, err := evidence.MakeBundle(w.Statement, w.Blobs, w.Evidence)
	return b, err
}

// Question is what the gate would ask, with an empty memory.
func (w *World) Question() (evidence.Question, error) {
	trust, err := w.Trust()
	if err != nil {
		return evidence.Question{}, err
	}
	mem := evidence.NewMemory()
	p, err := evidence.OpenPolicy(trust, []evidence.PublicKey{w.Root.PublicKey()}, mem, w.Now)
	if err != nil {
		return evidence.Question{}, err
	}
	return evidence.Question{Policy: p, Memory: mem, Catalogue: &w.Catalogue, Now: w.Now}, nil
}

func (w *World) at(d time.Duration) evidence.Timestamp { return evidence.At(w.Now.Add(d)) }

func catalogue() evidence.Catalogue {
	return evidence.Catalogue{
		ID: "synthetic-1",
		Cases: []evidence.CaseRef{
			{ID: "FS-02", Revision: 1, Tier: "smoke", Features: []string{"files"}, Oracles: []string{"tree-hash"}, PerImage: true},
			{ID: "IM-05", Revision: 2, Tier: "smoke", Features: []string{}, Oracles: []string{"process"}},
			{ID: "PR-01", Revision: 1, Tier: "full", Features: []string{"exec"}, Oracles: []string{"cgroup"}, PerImage: true},
			{ID: "QT-01", Revision: 1, Tier: "full", Features: []string{"exec", "quota"}, Oracles: []string{"usage"}},
			{ID: "ZZ-01", Revision: 1, Tier: "serial", Features: []string{"exec"}, Oracles: []string{}},
		},
		Profiles: []evidence.Profile{
			// No case needs credentials: this profile is empty.
			{Name: "credentials", Features: []string{"credentials", "exec", "files"}, Core: []string{"credentials"}, Tiers: []string{"full", "smoke"}},
			{Name: "quota", Features: []string{"exec", "files", "quota"}, Core: []string{"quota"}, Tiers: []string{"full", "smoke"}},
			{Name: "small", Features: []string{"files"}, Core: []string{"files"}, Tiers: []string{"smoke"}},
		},
	}
}

func (w *World) run() error {
	cat, err := w.Catalogue.Digest()
	if err != nil {
		return err
	}
	runsc := randomDigest()
	p := &w.Statement.Predicate
	p.Target = evidence.Target{Driver: "api", Mode: "qualification", Version: "0.1.0", Claims: []string{"exec", "files", "quota"}}
	p.Profiles = []string{"quota"}
	p.Issuer = evidence.Issuer{ID: "ci.example", Role: evidence.RoleCI, Runtime: "hallmark-reference"}
	p.Suite = evidence.Suite{
		Name: "hallmark", Version: "0.1.0", Commit: randomHex(20), TreeState: "clean", BinaryDigest: randomDigest(),
		CatalogueID: w.Catalogue.ID, CatalogueDigest: cat,
	}
	p.Cohort.Descriptor = evidence.CohortDescriptor{
		Arch: "amd64", Kernel: evidence.CohortKernel{Release: "6.18.0", Build: "#1 SMP"}, CgroupMode: "v1",
		Engine: evidence.CohortEngine{
			Version: "20.10.24", EngineDigest: randomDigest(), ContainerdDigest: randomDigest(), ShimDigest: randomDigest(),
			StorageDriver: "overlay2", ImageStore: "classic", DefaultRuntime: "runc",
		},
		Runtime: evidence.CohortRuntime{BinaryDigest: runsc, Args: []string{"--network=none"}},
		Sandbox: evidence.CohortSandbox{Version: "release-20260701.0", Platform: "systrap"},
		Quota:   evidence.CohortQuota{Backend: "loop", Filesystem: "ext4"},
		Sysctls: map[string]string{"fs.protected_hardlinks": "1"},
	}
	if p.Cohort.ID, err = evidence.CohortID(p.Cohort.Descriptor); err != nil {
		return err
	}
	p.Cohort.Capabilities = map[string]string{"sentry.openat2": "ENOSYS"}
	a, b := randomDigest(), randomDigest()
	if b < a {
		a, b = b, a
	}
	p.Images = []evidence.Image{
		{Name: "one", Role: evidence.ImageWorkload, ConfigDigest: a, ManifestDigest: randomDigest()},
		{Name: "two", Role: evidence.ImageWorkload, ConfigDigest: b, ManifestDigest: randomDigest()},
	}
	p.Binaries = []evidence.Binary{
		{Name: "hallmark-quota", Role: evidence.BinaryQuota, Digest: randomDigest()},
		{Name: "runsc", Role: evidence.BinarySandbox, Digest: runsc},
		{Name: "hallmark-supervisor", Role: evidence.BinarySupervisor, Digest: randomDigest()},
		{Name: "hallmark-worker", Role: evidence.BinaryWorker, Digest: randomDigest()},
	}
	p.WorkerConfig.Digest = randomDigest()
	p.LaunchProfile.Document = `{"HostConfig":{"NetworkMode":"none"}}`
	p.LaunchProfile.Digest = evidence.Digest([]byte(p.LaunchProfile.Document))
	p.Limitations = []string{"synthetic evidence shows nothing"}
	p.Validity = evidence.Validity{NotBefore: w.at(-time.Hour), NotAfter: w.at(29 * 24 * time.Hour)}
	p.Run = evidence.Run{ID: randomHex(16), StartedAt: w.at(-10 * time.Minute), FinishedAt: w.at(-5 * time.Minute), Sequence: 7}

	log := []byte("a line of a log\n")
	for _, ref := range w.Catalogue.Cases {
		if ref.Tier == "serial" { // in no profile
			continue
		}
		images := []string{a}
		if ref.PerImage {
			images = []string{a, b}
		}
		p.Cases = append(p.Cases, evidence.CaseRow{
			ID: ref.ID, Revision: ref.Revision, Status: evidence.StatusPass, Attempts: 1, DurationMs: 1200,
			Images: images, Witness: map[string]int64{"attempts": 20},
			Observations: map[string]jsontext.Value{"peak": jsontext.Value("17")},
			Artifacts:    []string{evidence.Digest(log)},
		})
	}
	p.Run.Arming = evidence.Arming{
		RunID: p.Run.ID, CatalogueDigest: cat, CohortID: p.Cohort.ID, Target: p.Target, StartedAt: p.Run.StartedAt,
	}
	var order []int // the last has finished first
	for i, c := range p.Cases {
		p.Run.Arming.PlannedCases = append(p.Run.Arming.PlannedCases, c.ID)
		order = append([]int{i}, order...)
	}
	for _, o := range []string{"cgroup", "process", "tree-hash", "usage"} {
		p.Run.Arming.Oracles = append(p.Run.Arming.Oracles, evidence.ArmedOracle{Oracle: o, Detected: true, Control: "planted and seen"})
	}
	for _, f := range []string{"credentials", "exec", "files", "quota"} {
		seen := evidence.FeaturePresent
		if f == "credentials" {
			seen = evidence.FeatureAbsent // and not claimed
		}
		p.Run.Arming.Features = append(p.Run.Arming.Features, evidence.SeenFeature{Feature: f, Observed: seen})
	}
	records, err := Reseal(&w.Statement, order)
	if err != nil {
		return err
	}
	report := GinkgoReport(p.Cases)
	if p.Suite.Ginkgo, err = evidence.ReportGinkgo(report, "2.34.0"); err != nil {
		return err
	}
	results := evidence.MutationResults{SuiteDigest: p.Suite.BinaryDigest, CatalogueDigest: cat, PatchesDigest: evidence.Digest([]byte("patches")), CohortID: p.Cohort.ID}
	for i, c := range p.Cases {
		reason := "escaped-" + fmt.Sprint(i)
		results.Rows = append(results.Rows, evidence.MutationRow{Mutant: fmt.Sprintf("m%02d", i), Case: c.ID, Expected: reason, Observed: reason})
	}
	results.Others = []evidence.MutationOthers{{
		Mutant: "m00", Passed: []string{p.Cases[1].ID, p.Cases[2].ID},
		Excused: []evidence.MutationExcused{{Case: p.Cases[3].ID, Status: evidence.StatusFail, Reason: "spoilt", Why: "the defect reaches this case too"}},
	}}
	mutation, err := evidence.SealMutation(results, w.Mutation)
	if err != nil {
		return err
	}
	p.MutationEvidence = &evidence.MutationEvidence{Digest: evidence.Digest(mutation), MutationResults: results}
	w.Blobs = []evidence.Blob{
		{Name: "cases.jsonl", Role: evidence.ArtifactRecords, MediaType: "application/jsonl", Body: records},
		{Name: "ginkgo.json", Role: evidence.ArtifactGinkgo, MediaType: "application/json", Body: report},
		{Name: "mutation.json", Role: evidence.ArtifactMutation, MediaType: "application/json", Body: mutation},
		{Name: "worker.log", Role: evidence.ArtifactLog, MediaType: "text/plain", Body: log},
	}
	p.Summary = Summary(w.Catalogue, *p)
	return nil
}

// Summary is what an honest producer computes of p: by its own profiles, without waivers.
func Summary(cat evidence.Catalogue, p evidence.Predicate) evidence.Summary {
	need := evidence.Need{Profiles: p.Profiles, Claims: p.Target.Claims, Features: p.Run.Arming.Features, Oracles: p.Run.Arming.Oracles}
	for _, m := range p.Images {
		if m.Role == evidence.ImageWorkload {
			need.Images = append(need.Images, m.ConfigDigest)
		}
	}
	return evidence.Verdict(cat, p.Cases, need).Summary()
}

// Reseal writes st's rows as records in the given order of finishing and sets the seal.
func Reseal(st *evidence.Statement, order []int) ([]byte, error) {
	p := &st.Predicate
	chain, err := evidence.NewChain(p.Run.Arming)
	if err != nil {
		return nil, err
	}
	var records []byte
	for _, i := range order {
		line, err := chain.Add(p.Cases[i])
		if err != nil {
			return nil, err
		}
		records = append(records, line...)
	}
	finished, _ := p.Run.FinishedAt.Time()
	p.Run.Seal = chain.Seal(finished)
	return records, nil
}

// GinkgoReport is a report whose specs passed as their rows did.
func GinkgoReport(rows []evidence.CaseRow) []byte {
	type spec struct {
		LeafNodeType, LeafNodeText, State string
		NumAttempts                       int
	}
	var specs []spec
	succeeded := true
	for _, r := range rows {
		state := map[string]string{evidence.StatusPass: "passed", evidence.StatusNotRun: "skipped", evidence.StatusNotApplicable: "skipped"}[r.Status]
		if state == "" {
			state, succeeded = "failed", false
		}
		specs = append(specs, spec{"It", r.ID + " synthetic", state, 1})
	}
	b, err := strictjson.Marshal([]any{map[string]any{
		"SuitePath": "/synthetic", "SuiteSucceeded": succeeded, "SuiteHasProgrammaticFocus": false,
		"SpecialSuiteFailureReasons": []string{},
		"SuiteConfig":                map[string]any{"RandomSeed": 42, "ParallelTotal": 1},
		"SpecReports":                specs,
	}})
	if err != nil {
		panic(err) // constant shapes
	}
	return b
}

func randomDigest() string { return "sha256:" + randomHex(32) }

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails, crypto/rand
	return hex.EncodeToString(b)
}
