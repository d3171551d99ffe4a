// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Evidence is what a signed bundle says beyond the run itself.
type Evidence struct {
	Signers  []evidence.Signer
	Sequence func() (int64, error) // asked once, only for a run that is signed
	Issuer   evidence.Issuer
	Cohort   evidence.Cohort
	Host     string // id of this host, "" for none
	Nonce    string // that the run was asked for with, or ""
	// Images are those of Options.Workloads, by both digests.
	Images []evidence.Image
	// Mutation and MutationFile name the signed results of the mutants, or are nil.
	Mutation     *evidence.MutationEvidence
	MutationFile []byte
	// Mutants gives the two late, instead: it is asked once, when every case has run, and only for a
	// run that is signed. The report says what the unmutated runtime came to. Without results and
	// without an error the bundle goes without them.
	Mutants     func(Report) (*evidence.MutationEvidence, []byte, error)
	Validity    time.Duration // from the start
	Limitations []string
}

func (e Evidence) check(workloads []string) error {
	var errs []error
	if len(e.Signers) == 0 || e.Sequence == nil || e.Validity <= 0 || len(e.Limitations) == 0 {
		errs = append(errs, errors.New("evidence needs a signer, a sequence, a validity and its limitations"))
	}
	if e.Mutants != nil && e.Mutation != nil {
		errs = append(errs, errors.New("evidence has the results of mutants and asks for others"))
	}
	if len(e.Images) != len(workloads) {
		errs = append(errs, fmt.Errorf("evidence names %d images of %d workloads", len(e.Images), len(workloads)))
	}
	for _, m := range e.Images {
		if !slices.Contains(workloads, m.ConfigDigest) {
			errs = append(errs, fmt.Errorf("evidence names the image %s, which is no workload", m.ConfigDigest))
		}
	}
	return errors.Join(errs...)
}

// Documents that a target keeps under these names have a place of their own in the predicate.
const (
	launchProfileDocument = "launch-profile.json"
	workerConfigDocument  = "worker-config.json"
)

// binaryRoles are the digests of a description that name programs, with the programs' names.
var binaryRoles = map[string]string{
	evidence.BinaryWorker: "hallmark-worker", evidence.BinarySupervisor: "hallmark-supervisor",
	evidence.BinaryQuota: "hallmark-quota", evidence.BinarySandbox: "sandbox-runtime",
}

// sign writes and signs the bundle below Out. It does not judge: a run that failed gets its
// bundle too, and the gate denies it.
func (r *result) sign(o Options, p plan, rows []evidence.CaseRow, judged evidence.Judgement, report Report) error {
	e := *o.Evidence
	if e.Mutants != nil {
		var err error
		if e.Mutation, e.MutationFile, err = e.Mutants(report); err != nil {
			return fmt.Errorf("mutants: %w", err)
		}
	}
	blobs, err := r.artifacts()
	if err != nil {
		return err
	}
	runner, err := os.ReadFile(filepath.Join(r.raw, ginkgoFile))
	if err != nil {
		return fmt.Errorf("read runner's report: %w", err)
	}
	ginkgo, err := evidence.ReportGinkgo(runner, types.VERSION)
	if err != nil {
		return fmt.Errorf("read runner's report: %w", err)
	}
	profile, err := os.ReadFile(filepath.Join(r.raw, documentsDir, launchProfileDocument))
	if err != nil {
		return fmt.Errorf("the target keeps no launch profile: %w", err)
	}
	config, err := os.ReadFile(filepath.Join(r.raw, documentsDir, workerConfigDocument))
	if err != nil {
		return fmt.Errorf("the target keeps no worker configuration: %w", err)
	}
	suite, err := suiteIdentity(o, p)
	if err != nil {
		return err
	}
	suite.Ginkgo = ginkgo
	sequence, err := e.Sequence()
	if err != nil {
		return fmt.Errorf("next sequence: %w", err)
	}
	seal := r.run.seal.Seal
	from, _ := r.run.arming.StartedAt.Time()
	st := evidence.Statement{Predicate: evidence.Predicate{
		Target: r.run.arming.Target, Profiles: o.profiles(), Waivers: []evidence.Waiver{}, Issuer: e.Issuer, Suite: suite,
		Cohort: e.Cohort, Images: slices.Clone(e.Images), WorkerConfig: evidence.WorkerConfig{Digest: evidence.Digest(config)},
		LaunchProfile: evidence.LaunchProfile{Digest: evidence.Digest(profile), Document: string(profile)},
		Run: evidence.Run{ID: p.RunID, Nonce: e.Nonce, Host: e.Host, StartedAt: r.run.arming.StartedAt, FinishedAt: seal.FinishedAt, Sequence: sequence,
			Arming: r.run.arming, Seal: seal},
		Cases: rows, MutationEvidence: e.Mutation, Summary: judged.Summary(),
		Validity:    evidence.Validity{NotBefore: r.run.arming.StartedAt, NotAfter: evidence.At(from.Add(e.Validity))},
		Limitations: e.Limitations,
	}}
	pr := &st.Predicate
	slices.SortFunc(pr.Images, func(a, b evidence.Image) int { return strings.Compare(a.ConfigDigest, b.ConfigDigest) })
	for role, digest := range r.run.setup.Target.Digests {
		if name, ok := binaryRoles[role]; ok {
			pr.Binaries = append(pr.Binaries, evidence.Binary{Name: name, Role: role, Digest: digest})
		}
	}
	slices.SortFunc(pr.Binaries, func(a, b evidence.Binary) int { return strings.Compare(a.Role, b.Role) })
	if e.Mutation != nil {
		blobs = append(blobs, evidence.Blob{Name: "mutation.json", Role: evidence.ArtifactMutation, MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json", Body: e.MutationFile})
	}
	_, err = evidence.WriteBundle(filepath.Join(o.Out, "bundle"), st, blobs, e.Signers...)
	return err
}

func suiteIdentity(o Options, p plan) (evidence.Suite, error) {
	exe := o.Executable
	if exe == "" {
		exe = "/proc/self/exe" // the bytes that run, whatever lies under the name by now
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		return evidence.Suite{}, fmt.Errorf("read own executable: %w", err)
	}
	return evidence.Suite{
		Name: "hallmark", Version: buildinfo.Version, Commit: buildinfo.Commit(), TreeState: buildinfo.TreeState(),
		BinaryDigest: evidence.Digest(b), CatalogueID: CatalogueID, CatalogueDigest: p.Catalogue,
	}, nil
}

const (
	mediaJSON  = "application/json"
	mediaLines = "application/x-ndjson"
	mediaText  = "text/plain"
	mediaBytes = "application/octet-stream"
)

// source is a raw file of the run, below its raw folder.
type source struct{ name, role, media, path string }

// runSources are the raw files of the run as a whole.
func (r *result) runSources() ([]source, error) {
	sources := []source{
		{"ginkgo.json", evidence.ArtifactGinkgo, mediaJSON, ginkgoFile},
		{"rows.jsonl", evidence.ArtifactRecords, mediaLines, rowsFile},
		{"details.jsonl", "case-details", mediaLines, detailsFile},
		{"setup.json", "setup", mediaJSON, setupFile},
		{"suite.log", evidence.ArtifactLog, mediaText, childLog},
	}
	documents, err := os.ReadDir(filepath.Join(r.raw, documentsDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read target's documents: %w", err)
	}
	for _, d := range documents {
		s := source{"target/" + plainName(d.Name()), "target-document", mediaText, filepath.Join(documentsDir, d.Name())}
		switch {
		case d.Name() == launchProfileDocument:
			s.role, s.media = evidence.ArtifactInspect, mediaJSON
		case strings.HasPrefix(otherProcess.ReplaceAllString(d.Name(), ""), "tape"):
			s.role, s.media = evidence.ArtifactTape, mediaLines
		case strings.HasSuffix(d.Name(), ".log"):
			s.role = evidence.ArtifactLog
		case strings.HasSuffix(d.Name(), ".json"):
			s.media = mediaJSON
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// artifacts are the raw files of the run in the form that evidence stores.
func (r *result) artifacts() ([]evidence.Blob, error) {
	sources, err := r.runSources()
	if err != nil {
		return nil, err
	}
	for _, rec := range r.run.records {
		for i, e := range rec.Workloads {
			for n, a := range e.Artifacts {
				name := fmt.Sprintf("cases/%s/%d-%d-%s", plainName(rec.ID), i+1, n+1, plainName(a.Name))
				sources = append(sources, source{name, evidence.ArtifactOracle, mediaBytes, filepath.Join(blobsDir, strings.TrimPrefix(a.Digest, "sha256:"))})
			}
		}
	}
	var out []evidence.Blob
	for _, s := range sources {
		b, err := os.ReadFile(filepath.Join(r.raw, s.path))
		if err != nil {
			return nil, fmt.Errorf("read artifact %s: %w", s.name, err)
		}
		out = append(out, evidence.Blob{Name: s.name, Role: s.role, MediaType: s.media, Body: b})
	}
	return out, nil
}

// otherProcess begins the names of the documents that belong to another process than the first.
var otherProcess = regexp.MustCompile(`^p[0-9]+-`)

var notPlain = regexp.MustCompile(`[^a-z0-9_]+`)

// plainName keeps what an artifact's name may hold: lower case words with single dots.
func plainName(s string) string {
	var parts []string
	for _, p := range strings.Split(strings.ToLower(s), ".") {
		if p = strings.Trim(notPlain.ReplaceAllString(p, "-"), "-"); p != "" {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return "unnamed"
	}
	name := strings.Join(parts, ".")
	return name[:min(len(name), 80)]
}
