// SPDX-License-Identifier: Apache-2.0

package evidence

// Reason is a stable code for why evidence was denied. "" never denies.
type Reason string

// Codes by the gate's step; the table below says when each is given.
const (
	ReasonFileKind  Reason = "file-kind"
	ReasonFileSize  Reason = "file-size"
	ReasonFileExtra Reason = "file-extra"
	ReasonFileGone  Reason = "file-missing"

	ReasonBundleJSON      Reason = "bundle-json"
	ReasonBundleCanonical Reason = "bundle-not-canonical"

	ReasonMediaType      Reason = "bundle-media-type"
	ReasonSignatureCount Reason = "signature-count"
	ReasonBase64         Reason = "base64-not-canonical"

	ReasonPayloadType Reason = "payload-type"

	ReasonKeyUnknown Reason = "key-unknown"
	ReasonSignature  Reason = "signature-invalid"

	ReasonKeyRole    Reason = "key-role"
	ReasonKeyScope   Reason = "key-scope"
	ReasonKeyTime    Reason = "key-time"
	ReasonKeyRevoked Reason = "key-revoked"
	ReasonKeyIssuer  Reason = "key-issuer"

	ReasonPayloadJSON   Reason = "payload-json"
	ReasonStatementType Reason = "statement-type"
	ReasonPredicateType Reason = "predicate-type"

	ReasonSchemaVersion Reason = "schema-version"
	ReasonSchema        Reason = "schema"
	ReasonTimeFormat    Reason = "time-format"

	ReasonSubjects Reason = "subjects"
	ReasonWanted   Reason = "wanted-digest"
	ReasonSplit    Reason = "evidence-split"

	ReasonCohortID         Reason = "cohort-id"
	ReasonCohortOther      Reason = "cohort-other"
	ReasonCapability       Reason = "capability"
	ReasonLaunchProfile    Reason = "launch-profile"
	ReasonCohortBinary     Reason = "cohort-binary"
	ReasonCatalogue        Reason = "catalogue"
	ReasonProfile          Reason = "profile"
	ReasonClaimAbsent      Reason = "claim-absent"
	ReasonClaimUnchecked   Reason = "claim-unchecked"
	ReasonCaseFailed       Reason = "case-failed"
	ReasonCaseMissing      Reason = "case-missing"
	ReasonCaseUnknown      Reason = "case-unknown"
	ReasonCaseDuplicate    Reason = "case-duplicate"
	ReasonCaseRevision     Reason = "case-revision"
	ReasonCaseStatus       Reason = "case-status"
	ReasonCaseInconclusive Reason = "case-inconclusive"
	ReasonCaseError        Reason = "case-error"
	ReasonCaseNotRun       Reason = "case-not-run"

	ReasonCaseNotApplicable Reason = "case-not-applicable"

	ReasonCaseWaived    Reason = "case-waived"
	ReasonCaseAttempts  Reason = "case-attempts"
	ReasonCaseWitness   Reason = "case-no-witness"
	ReasonCaseImages    Reason = "case-images"
	ReasonOracleUnarmed Reason = "oracle-unarmed"

	ReasonTree     Reason = "suite-tree"
	ReasonFilter   Reason = "run-filtered"
	ReasonFocus    Reason = "run-focused"
	ReasonDryRun   Reason = "run-dry"
	ReasonRetries  Reason = "run-retries"
	ReasonFailFast Reason = "run-fail-fast"
	ReasonSuite    Reason = "suite-failed"
	ReasonArming   Reason = "arming"
	ReasonSeal     Reason = "seal"
	ReasonMutation Reason = "mutation-evidence"
	ReasonMutant   Reason = "mutant-survived"

	ReasonSummary    Reason = "summary"
	ReasonArtifact   Reason = "artifact"
	ReasonLayout     Reason = "oci-layout"
	ReasonRecords    Reason = "records-disagree"
	ReasonReport     Reason = "report-disagrees"
	ReasonTestResult Reason = "derived-statement"

	ReasonNotYet   Reason = "not-yet-valid"
	ReasonExpired  Reason = "expired"
	ReasonOrder    Reason = "time-order"
	ReasonFuture   Reason = "finished-in-future"
	ReasonTooOld   Reason = "too-old"
	ReasonValidity Reason = "validity-too-long"

	ReasonDenied      Reason = "digest-denied"
	ReasonMinSequence Reason = "sequence-below-minimum"
	ReasonRollback    Reason = "sequence-rollback"
	ReasonFork        Reason = "sequence-fork"
	ReasonRunReused   Reason = "run-reused"

	ReasonThreshold Reason = "threshold"
	ReasonPayloads  Reason = "payloads-differ"

	ReasonPolicyMissing   Reason = "policy-missing"
	ReasonPolicyInvalid   Reason = "policy-invalid"
	ReasonPolicySignature Reason = "policy-signature"
	ReasonPolicyExpired   Reason = "policy-expired"
	ReasonPolicyRollback  Reason = "policy-rollback"
	ReasonPolicyCatalogue Reason = "policy-catalogue"

	ReasonPinsInvalid   Reason = "pins-invalid"
	ReasonPinsSignature Reason = "pins-signature"
	ReasonPinsPolicy    Reason = "pins-policy"
	ReasonPinsEvidence  Reason = "pins-evidence"
	ReasonPinsMode      Reason = "pins-candidate"
	ReasonNotPinned     Reason = "not-pinned"
)

// ReasonInfo is one row of the table of codes.
type ReasonInfo struct {
	Code Reason
	// Step is the gate's step that gives the code: 0 for the policy, which comes before the
	// evidence, and 20 for pins, which come after it.
	Step     int
	Sentence string
}

// Reasons returns the table of codes in the order of the gate's steps.
func Reasons() []ReasonInfo {
	return []ReasonInfo{
		{ReasonPolicyMissing, 0, "no trust policy or no root key was given"},
		{ReasonPolicyInvalid, 0, "the trust policy is not valid"},
		{ReasonPolicySignature, 0, "the trust policy is not signed by a root key"},
		{ReasonPolicyExpired, 0, "the trust policy has expired"},
		{ReasonPolicyRollback, 0, "a newer trust policy, or another of the same version, was seen before"},
		{ReasonPolicyCatalogue, 0, "the trust policy demands another catalogue than this verifier holds"},

		{ReasonFileKind, 1, "something in the bundle is not a regular file or a plain directory"},
		{ReasonFileSize, 1, "a file of the bundle is beyond its bound"},
		{ReasonFileExtra, 1, "the bundle holds a file that nothing in it names"},
		{ReasonFileGone, 1, "a file of the bundle is missing"},

		{ReasonBundleJSON, 2, "the bundle file is not strict JSON of its schema"},
		{ReasonBundleCanonical, 2, "the bundle file is not the canonical encoding of its contents"},

		{ReasonMediaType, 3, "the media type is not Sigstore bundle v0.3"},
		{ReasonSignatureCount, 3, "the envelope does not hold exactly one signature"},
		{ReasonBase64, 3, "a base64 string is not the encoding of what it decodes to"},

		{ReasonPayloadType, 4, "the payload type is not in-toto JSON"},

		{ReasonKeyUnknown, 5, "the trust policy has no key of this hint"},
		{ReasonSignature, 5, "the signature does not verify under the policy's key and algorithm"},

		{ReasonKeyRole, 6, "the key may not speak in this role"},
		{ReasonKeyScope, 6, "the key may not speak for this cohort"},
		{ReasonKeyTime, 6, "the key was not valid when the run finished, or is not now"},
		{ReasonKeyRevoked, 6, "the key is revoked"},
		{ReasonKeyIssuer, 6, "the key belongs to another issuer"},

		{ReasonPayloadJSON, 7, "the payload is not strict JSON of the statement's schema"},
		{ReasonStatementType, 7, "the payload is not an in-toto Statement v1"},
		{ReasonPredicateType, 7, "the predicate is not a sandbox conformance predicate v1"},

		{ReasonSchemaVersion, 8, "the predicate has another schema version"},
		{ReasonSchema, 8, "a member of the predicate has a value outside its schema"},
		{ReasonTimeFormat, 8, "a time is not written as UTC in whole seconds"},

		{ReasonSubjects, 9, "the subjects are not exactly the images and binaries"},
		{ReasonWanted, 9, "a requested digest is not in this statement"},
		{ReasonSplit, 9, "bundles given together differ in cohort, binaries or launch profile"},

		{ReasonCohortID, 10, "the cohort id is not the digest of its descriptor"},
		{ReasonCohortBinary, 10, "the cohort's runtime binary is not the sandbox binary of the statement"},
		{ReasonCohortOther, 10, "the cohort is not the one asked for or measured"},
		{ReasonCapability, 10, "a capability that the policy requires is not there"},
		{ReasonLaunchProfile, 10, "the launch profile digest is not that of its document"},

		{ReasonCatalogue, 11, "the suite ran another catalogue"},
		{ReasonProfile, 11, "a required profile was not claimed, does not exist, or requires no case of what it is about"},
		{ReasonClaimAbsent, 11, "the target claims a feature that the suite saw to be absent"},
		{ReasonClaimUnchecked, 11, "the target claims a feature that the suite did not see"},
		{ReasonCaseFailed, 11, "a case failed"},
		{ReasonCaseMissing, 11, "a required case is missing"},
		{ReasonCaseUnknown, 11, "a row is of no case of the catalogue"},
		{ReasonCaseDuplicate, 11, "a case has several rows"},
		{ReasonCaseRevision, 11, "a case ran in another revision"},
		{ReasonCaseStatus, 11, "a status is not of the closed set, or contradicts its row"},
		{ReasonCaseInconclusive, 11, "a case is inconclusive"},
		{ReasonCaseError, 11, "a case ended with an error of the suite"},
		{ReasonCaseNotRun, 11, "a case did not run"},
		{ReasonCaseNotApplicable, 11, "a required case was called not applicable"},
		{ReasonCaseWaived, 11, "a case was waived by the producer only"},
		{ReasonCaseAttempts, 11, "a case took more or less than one attempt"},
		{ReasonCaseWitness, 11, "a pass has no witness"},
		{ReasonCaseImages, 11, "a case did not run in the images of the bundle"},
		{ReasonOracleUnarmed, 11, "an oracle that a case needs was not armed"},

		{ReasonTree, 12, "the suite was not built from a clean, known commit"},
		{ReasonFilter, 12, "the run was filtered"},
		{ReasonFocus, 12, "the run had a programmatic focus"},
		{ReasonDryRun, 12, "the run was dry"},
		{ReasonRetries, 12, "the run was allowed to retry"},
		{ReasonFailFast, 12, "the run stopped at the first failure"},
		{ReasonSuite, 12, "the runner did not report success"},
		{ReasonArming, 12, "the arming record does not fit the run"},
		{ReasonSeal, 12, "the seal does not fit the run"},
		{ReasonMutation, 12, "the mutation evidence is missing, of another suite, or not signed as the policy demands"},
		{ReasonMutant, 12, "a mutant survived, or died of something else"},

		{ReasonSummary, 13, "the summary is not what the rows give"},
		{ReasonArtifact, 13, "an artifact is missing, or not the one that was signed"},
		{ReasonLayout, 13, "the OCI layout is not the encoding of the signed list"},
		{ReasonRecords, 13, "the case records do not give the signed rows"},
		{ReasonReport, 13, "the runner's report does not give the signed rows"},
		{ReasonTestResult, 13, "the derived test-result statement disagrees"},

		{ReasonOrder, 14, "the times of the run are not in order"},
		{ReasonNotYet, 14, "the evidence is not valid yet"},
		{ReasonExpired, 14, "the evidence has expired"},
		{ReasonFuture, 14, "the run finished in the future"},
		{ReasonTooOld, 14, "the run is older than the policy allows"},
		{ReasonValidity, 14, "the validity is longer than the policy allows"},

		{ReasonDenied, 15, "the policy denies a digest of this bundle"},
		{ReasonMinSequence, 15, "the sequence is below the policy's minimum"},
		{ReasonRollback, 15, "newer evidence of this key about this image was seen before"},
		{ReasonFork, 15, "other evidence with this sequence was seen before"},
		{ReasonRunReused, 15, "the run id was used before by other evidence"},

		{ReasonPayloads, 16, "signers signed different payloads"},
		{ReasonThreshold, 16, "fewer distinct keys and issuers signed than the policy demands"},

		{ReasonPinsInvalid, 20, "the pins are not a valid verification summary"},
		{ReasonPinsSignature, 20, "the pins are not signed by a gate key of the policy"},
		{ReasonPinsPolicy, 20, "the pins were made under another trust policy"},
		{ReasonPinsEvidence, 20, "the pins do not follow from the evidence beside them"},
		{ReasonPinsMode, 20, "the pins are candidates"},
		{ReasonNotPinned, 20, "a digest is not pinned"},
	}
}

// Failure says that something that must hold was seen not to hold, which is more than that
// nothing was shown.
func (r Reason) Failure() bool { return r == ReasonCaseFailed || r == ReasonClaimAbsent }

// Sentence returns the table's sentence for r, or "" for a code outside the table.
func (r Reason) Sentence() string {
	for _, i := range Reasons() {
		if i.Code == r {
			return i.Sentence
		}
	}
	return ""
}

// Step returns the gate's step of r, or -1 for a code outside the table.
func (r Reason) Step() int {
	for _, i := range Reasons() {
		if i.Code == r {
			return i.Step
		}
	}
	return -1
}
