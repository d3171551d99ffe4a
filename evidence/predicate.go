// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Types of statement and predicate. Generic verifiers accept Statement v0.1; this one does not.
const (
	StatementType         = "https://in-toto.io/Statement/v1"
	PredicateType         = "https://hallmark-sandbox.github.io/attestation/sandbox-conformance/v1"
	MutationPredicateType = "https://hallmark-sandbox.github.io/attestation/mutation-results/v1"
	TestResultType        = "https://in-toto.io/attestation/test-result/v0.1"
	VSAPredicateType      = "https://slsa.dev/verification_summary/v1"
	SchemaVersion         = 1
)

// Statement is the signed payload of an evidence bundle: in-toto Statement v1 around one
// [Predicate]. [WriteBundle] fills Type, Subject, PredicateType and Predicate.Artifacts.
type Statement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Predicate `json:"predicate"`
}

// Subject is one image or binary. Images carry their manifest digest as an annotation.
type Subject struct {
	Name        string            `json:"name"`
	Digest      DigestSet         `json:"digest"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// DigestSet holds the one algorithm in use, as 64 lower-case hex digits without a prefix.
type DigestSet struct {
	SHA256 string `json:"sha256"`
}

// Predicate says what was tested, how, and what came out. All digests in it are written
// "sha256:" and 64 lower-case hex digits. Every member is required unless its tag says
// omitempty; there are no floating point numbers; integers are at most 2^53-1.
type Predicate struct {
	SchemaVersion    int64                     `json:"schemaVersion"`
	Target           Target                    `json:"target"`
	Profiles         []string                  `json:"profiles"` // sorted
	Waivers          []Waiver                  `json:"waivers"`  // recorded only: those of the policy count
	Issuer           Issuer                    `json:"issuer"`
	Suite            Suite                     `json:"suite"`
	Cohort           Cohort                    `json:"cohort"`
	Images           []Image                   `json:"images"`   // exactly those that cases ran in, sorted by configDigest
	Binaries         []Binary                  `json:"binaries"` // sorted by role
	WorkerConfig     WorkerConfig              `json:"workerConfig"`
	LaunchProfile    LaunchProfile             `json:"launchProfile"`
	Run              Run                       `json:"run"`
	Cases            []CaseRow                 `json:"cases"`            // sorted by id, unique
	MutationEvidence *MutationEvidence         `json:"mutationEvidence"` // null when there is none
	Summary          Summary                   `json:"summary"`
	Artifacts        Artifacts                 `json:"artifacts"`
	Validity         Validity                  `json:"validity"`
	Limitations      []string                  `json:"limitations"` // what this run does not show; not empty
	Extensions       map[string]jsontext.Value `json:"extensions,omitempty"`
}

// Target is what was tested, by its own word and the driver's.
type Target struct {
	Driver  string   `json:"driver"`
	Mode    string   `json:"mode"`
	Version string   `json:"version"`
	Claims  []string `json:"claims"` // features, sorted
}

// Waiver excuses one reason of one case at one revision, with a bug and an end.
type Waiver struct {
	Case     string    `json:"case"`
	Revision int64     `json:"revision"`
	Reason   string    `json:"reason"` // that the row must have, and nothing beside it
	Bug      string    `json:"bug"`
	Expires  Timestamp `json:"expires"`
}

// Roles of an issuer, and of the keys that may speak for it.
const (
	RoleCI          = "ci"
	RoleRelease     = "release"
	RoleImplementer = "implementer"
	RoleMutation    = "mutation" // keys only: signs mutation statements
	RoleGate        = "gate"     // keys only: signs pins
)

// Issuer says who ran the suite. ID must be that of the key in the trust policy.
type Issuer struct {
	ID      string `json:"id"`
	Role    string `json:"role"`
	Runtime string `json:"runtime"` // name of the runtime under test, for example "hallmark-reference"
}

// Suite identifies the program that judged.
type Suite struct {
	Name            string `json:"name"`
	Version         string `json:"version"`
	Commit          string `json:"commit"`    // 40 hex digits
	TreeState       string `json:"treeState"` // only "clean" is admissible
	BinaryDigest    string `json:"binaryDigest"`
	CatalogueID     string `json:"catalogueId"`
	CatalogueDigest string `json:"catalogueDigest"`
	Ginkgo          Ginkgo `json:"ginkgo"`
}

// Ginkgo records how the runner was asked to run, copied from its own report.
type Ginkgo struct {
	Version            string   `json:"version"`
	Seed               int64    `json:"seed"`
	FocusStrings       []string `json:"focusStrings"`
	SkipStrings        []string `json:"skipStrings"`
	FocusFiles         []string `json:"focusFiles"`
	SkipFiles          []string `json:"skipFiles"`
	LabelFilter        string   `json:"labelFilter"`
	SemVerFilter       string   `json:"semVerFilter"`
	DryRun             bool     `json:"dryRun"`
	FailFast           bool     `json:"failFast"`
	FlakeAttempts      int64    `json:"flakeAttempts"`
	MustPassRepeatedly int64    `json:"mustPassRepeatedly"`
	Parallel           int64    `json:"parallel"`
	ProgrammaticFocus  bool     `json:"programmaticFocus"`
	Succeeded          bool     `json:"succeeded"`
	// SpecialFailures are the runner's own, and the nodes that are no cases and did not pass, like
	// "SynchronizedAfterSuite failed".
	SpecialFailures []string `json:"specialFailures"`
}

// Cohort is what was measured. ID is [CohortID] of Descriptor; Capabilities were probed and
// are not part of the id.
type Cohort struct {
	ID           string            `json:"id"`
	Descriptor   CohortDescriptor  `json:"descriptor"`
	Capabilities map[string]string `json:"capabilities"` // "sentry.openat2": "ENOSYS"
}

// Image roles.
const (
	ImageWorkload = "workload"
	ImageHelper   = "helper"
)

// Image is one image that cases ran in.
type Image struct {
	Name           string `json:"name"`
	Role           string `json:"role"`
	ConfigDigest   string `json:"configDigest"`   // what the engine reports and starts
	ManifestDigest string `json:"manifestDigest"` // what a registry would serve
}

// Binary roles; the first four are demanded of the reference runtime.
const (
	BinaryWorker     = "worker"
	BinarySupervisor = "supervisor"
	BinaryQuota      = "quota"
	BinarySandbox    = "sandbox" // runsc
)

// Binary is one program of the runtime under test. Roles are unique.
type Binary struct {
	Name   string `json:"name"`
	Role   string `json:"role"`
	Digest string `json:"digest"`
}

// WorkerConfig names the security-relevant configuration by the digest of its canonical form.
type WorkerConfig struct {
	Digest string `json:"digest"`
}

// LaunchProfile is the normalised inspect output that was observed. Document is the exact
// text; Digest is the sha256 of its bytes.
type LaunchProfile struct {
	Digest   string `json:"digest"`
	Document string `json:"document"`
}

// Run is one execution of the suite.
type Run struct {
	ID         string    `json:"id"`              // 32 hex digits, random
	Nonce      string    `json:"nonce,omitempty"` // of whoever asked for this very run
	Host       string    `json:"host,omitempty"`  // digest that names the host; no part of the cohort
	StartedAt  Timestamp `json:"startedAt"`
	FinishedAt Timestamp `json:"finishedAt"`
	Sequence   int64     `json:"sequence"`           // rises per key, see [NextSequence]
	Previous   string    `json:"previous,omitempty"` // payload digest of the bundle before
	Arming     Arming    `json:"arming"`
	Seal       Seal      `json:"seal"`
}

// Arming is written and fsynced before the first case.
type Arming struct {
	RunID           string        `json:"runId"`
	CatalogueDigest string        `json:"catalogueDigest"`
	PlannedCases    []string      `json:"plannedCases"` // sorted ids
	CohortID        string        `json:"cohortId"`
	Target          Target        `json:"target"`
	StartedAt       Timestamp     `json:"startedAt"`
	Oracles         []ArmedOracle `json:"oracles"` // sorted by oracle
	// Features are what the suite saw of every feature of the catalogue, claimed or not; sorted.
	Features []SeenFeature `json:"features"`
}

// SeenFeature is one feature as the suite saw it before the first case.
type SeenFeature struct {
	Feature  string `json:"feature"`
	Observed string `json:"observed"`
}

// What the suite can have seen of a feature; the closed set.
const (
	FeaturePresent = "present"
	FeatureAbsent  = "absent"
	FeatureUnknown = "unknown"
)

// ArmedOracle says whether an oracle detected its planted positive in this run.
type ArmedOracle struct {
	Oracle   string `json:"oracle"`
	Detected bool   `json:"detected"`
	Control  string `json:"control"` // what was planted and seen, or why it was not
}

// Seal closes an armed run; see [Chain].
type Seal struct {
	Digest     string    `json:"digest"`
	Count      int64     `json:"count"`
	FinishedAt Timestamp `json:"finishedAt"`
}

// CaseRow is what one case came to. Status is a string of the case model: pass, fail,
// inconclusive, error, not-applicable, not-run, waived. Reason is empty for pass and a stable
// kebab word otherwise.
type CaseRow struct {
	ID         string `json:"id"`
	Revision   int64  `json:"revision"`
	Status     string `json:"status"`
	Reason     string `json:"reason,omitempty"`
	Attempts   int64  `json:"attempts"`
	DurationMs int64  `json:"durationMs"`
	// Also is what else any run of the case came to, as "status:reason", sorted; empty for a pass.
	// Status and Reason are the worst alone, and a leak may hide behind a failure that is known.
	Also []string `json:"also"`
	// Images are the config digests of the workloads that the case ran in, sorted. A case that
	// runs per image names all of them, and its status is the worst of its runs.
	Images       []string                  `json:"images"`
	Witness      map[string]int64          `json:"witness"`
	Observations map[string]jsontext.Value `json:"observations"`
	Artifacts    []string                  `json:"artifacts"` // digests, sorted
}

// Statuses of a row, as the case model spells them.
const (
	StatusPass          = "pass"
	StatusFail          = "fail"
	StatusInconclusive  = "inconclusive"
	StatusError         = "error"
	StatusNotApplicable = "not-applicable"
	StatusNotRun        = "not-run"
	StatusWaived        = "waived"
)

// MutationEvidence repeats a separately signed mutation statement and names it by the digest
// of its envelope file, which is the artifact of role [ArtifactMutation].
type MutationEvidence struct {
	Digest string `json:"digest"`
	MutationResults
}

// MutationResults is the predicate of a mutation statement.
type MutationResults struct {
	SuiteDigest     string        `json:"suiteDigest"` // digest of the suite binary
	CatalogueDigest string        `json:"catalogueDigest"`
	PatchesDigest   string        `json:"patchesDigest"` // over the patches that the mutants are named by
	CohortID        string        `json:"cohortId"`
	Rows            []MutationRow `json:"rows"` // sorted by mutant, then case
	// Others are the cases that are not there to catch a mutant and ran against it all the same;
	// sorted by mutant. Empty when only the pairs of Rows were run.
	Others []MutationOthers `json:"others"`
}

// MutationOthers says that a mutant leaves the other cases green, or why it does not.
type MutationOthers struct {
	Mutant  string            `json:"mutant"`
	Passed  []string          `json:"passed"`  // sorted case ids
	Excused []MutationExcused `json:"excused"` // sorted by case
}

// MutationExcused is a case that a mutant spoils on the side. Why is written with the mutant.
type MutationExcused struct {
	Case   string `json:"case"`
	Status string `json:"status"` // of the case model, but not pass
	Reason string `json:"reason"` // a stable word
	Why    string `json:"why"`
}

// MutationRow says what a mutant did to a case. It is caught when Observed equals Expected.
type MutationRow struct {
	Mutant   string `json:"mutant"`
	Case     string `json:"case"`
	Expected string `json:"expected"` // reason code
	Observed string `json:"observed"` // reason code, or "" for a mutant that survived
}

// Summary is what [Verdict] computes from the rows for the profiles that the producer names,
// without waivers; the verifier computes it again, in the same way, before it judges by its own
// policy.
type Summary struct {
	Verdict  Outcome   `json:"verdict"`
	Counts   Counts    `json:"counts"`
	Findings []Finding `json:"findings"`
}

// equal compares a summary that was read with one that was computed.
func (s Summary) equal(o Summary) bool {
	return s.Verdict == o.Verdict && s.Counts == o.Counts && slices.Equal(s.Findings, o.Findings)
}

// Counts are numbers of rows by status.
type Counts struct {
	Total         int64 `json:"total"`
	Pass          int64 `json:"pass"`
	Fail          int64 `json:"fail"`
	Inconclusive  int64 `json:"inconclusive"`
	Error         int64 `json:"error"`
	NotApplicable int64 `json:"notApplicable"`
	NotRun        int64 `json:"notRun"`
	Waived        int64 `json:"waived"`
}

// Artifacts lists the raw artifacts. Root is the sha256 of the RFC 8785 form of Items.
type Artifacts struct {
	Root  string     `json:"root"`
	Items []Artifact `json:"items"` // sorted by name, names unique
}

// Artifact roles that the audit reads. Other roles are free words.
const (
	ArtifactGinkgo     = "ginkgo-report" // Ginkgo's own JSON report
	ArtifactRecords    = "case-records"  // one CaseRow per line in order of finishing
	ArtifactMutation   = "mutation-evidence"
	ArtifactTestResult = "test-result" // derived statement, written by WriteBundle
	ArtifactLog        = "log"
	ArtifactInspect    = "inspect"
	ArtifactTape       = "tape"
	ArtifactOracle     = "oracle"
)

// Artifact names one blob of the bundle.
type Artifact struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// Validity is the producer's own bound; the policy may shorten it, never lengthen it.
type Validity struct {
	NotBefore Timestamp `json:"notBefore"`
	NotAfter  Timestamp `json:"notAfter"`
}
