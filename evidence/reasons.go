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
	ReasonArchive   Reason = "archive"

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
	ReasonHost             Reason = "host-other"
	ReasonFleetOther       Reason = "cohort-not-in-fleet"
	ReasonFleetAmbiguous   Reason = "cohort-ambiguous"
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
	ReasonNonce       Reason = "nonce-other"
	ReasonNonceReused Reason = "nonce-reused"

	ReasonThreshold Reason = "threshold"
	ReasonPayloads  Reason = "payloads-differ"

	ReasonLogMissing    Reason = "log-missing"
	ReasonLogCheckpoint Reason = "log-checkpoint"
	ReasonLogProof      Reason = "log-proof"
	ReasonLogFork       Reason = "log-inconsistent"

	ReasonExpressionError Reason = "expression-error"
	ReasonExpression      Reason = "expression-denied"

	ReasonCohortEvidence Reason = "cohort-without-evidence"
	ReasonImageEvidence  Reason = "image-without-evidence"

	ReasonPolicyMissing   Reason = "policy-missing"
	ReasonPolicyInvalid   Reason = "policy-invalid"
	ReasonPolicySignature Reason = "policy-signature"
	ReasonPolicyExpired   Reason = "policy-expired"
	ReasonPolicyRollback  Reason = "policy-rollback"
	ReasonPolicyRotation  Reason = "policy-rotation"
	ReasonPolicyCatalogue Reason = "policy-catalogue"

	ReasonPinsInvalid   Reason = "pins-invalid"
	ReasonPinsSignature Reason = "pins-signature"
	ReasonPinsPolicy    Reason = "pins-policy"
	ReasonPinsEvidence  Reason = "pins-evidence"
	ReasonPinsRollback  Reason = "pins-rollback"
	ReasonPinsMode      Reason = "pins-candidate"
	ReasonNotPinned     Reason = "not-pinned"
)

// ReasonInfo is one row of the table of codes.
type ReasonInfo struct {
	Code Reason
	// Step is the gate's step that gives the code: 0 for the policy, which comes before the
	// evidence, 19 for the release over all of it, and 20 for pins, which come after it.
	Step     int
	Sentence string // the cause
	Remedy   string // what can be done, without a full stop
}

// Remedies that many codes share.
const (
	remedyWhole     = "get the bundle again, whole and unchanged, from whoever made it"
	remedyInspect   = "look at what the bundle says with `hallmark evidence inspect`"
	remedyRun       = "mend what is named and run the suite again on this cohort"
	remedyDisagrees = "get the bundle again from whoever made it: it does not agree with itself"
	remedyAgain     = "run the suite again on this cohort"
)

// Reasons returns the table of codes in the order of the gate's steps.
func Reasons() []ReasonInfo {
	return []ReasonInfo{
		{ReasonPolicyMissing, 0, "no trust policy or no root key was given",
			"give a signed trust policy and the root key: `hallmark trust init` makes both"},
		{ReasonPolicyInvalid, 0, "the trust policy is not valid",
			"give a signed trust policy: `hallmark trust sign` makes one, and names a member that is wrong"},
		{ReasonPolicySignature, 0, "the trust policy is not signed by a root key",
			"give the policy and the root key that belong together, with --trust and --root"},
		{ReasonPolicyExpired, 0, "the trust policy has expired",
			"sign a new version of the trust policy, see `hallmark trust sign --help`"},
		{ReasonPolicyRollback, 0, "a newer trust policy, or another of the same version, was seen before",
			"give the newest trust policy that this gate has seen, or a newer one"},
		{ReasonPolicyRotation, 0, "the trust policy is signed by new root keys only, without one that signed the policy before",
			"let the old and the new root sign one version, with `hallmark trust sign --key OLD --key NEW`, and give that first"},
		{ReasonPolicyCatalogue, 0, "the trust policy demands another catalogue than this verifier holds",
			"use suite, gate and policy of one release, or give the gate the other catalogue with --catalogue"},

		{ReasonFileKind, 1, "something in the bundle is not a regular file or a plain directory",
			"copy the bundle as plain files and directories"},
		{ReasonFileSize, 1, "a file of the bundle is beyond its bound",
			"get the bundle again from whoever made it; no good one is so large"},
		{ReasonFileExtra, 1, "the bundle holds a file that nothing in it names",
			"take away what is not of the bundle"},
		{ReasonFileGone, 1, "a file of the bundle is missing", remedyWhole},
		{ReasonArchive, 1, "the file is not, byte for byte, the archive of a bundle",
			"let `hallmark evidence pack` write the archive again, or give the bundle as a directory"},

		{ReasonBundleJSON, 2, "the bundle file is not strict JSON of its schema", remedyWhole},
		{ReasonBundleCanonical, 2, "the bundle file is not the canonical encoding of its contents", remedyWhole},

		{ReasonMediaType, 3, "the media type is not Sigstore bundle v0.3", remedyWhole},
		{ReasonSignatureCount, 3, "the envelope does not hold exactly one signature", remedyWhole},
		{ReasonBase64, 3, "a base64 string is not the encoding of what it decodes to", remedyWhole},

		{ReasonPayloadType, 4, "the payload type is not in-toto JSON", remedyWhole},

		{ReasonKeyUnknown, 5, "the trust policy has no key of this hint",
			"get the key into the policy, or the evidence from a key that is in it: see `hallmark trust show`"},
		{ReasonSignature, 5, "the signature does not verify under the policy's key and algorithm", remedyWhole},

		{ReasonKeyRole, 6, "the key may not speak in this role",
			"sign with a key of the role that the policy gives thresholds for: see `hallmark trust show`"},
		{ReasonKeyScope, 6, "the key may not speak for this cohort",
			"sign with a key whose cohorts include this one: see `hallmark trust show`"},
		{ReasonKeyTime, 6, "the key was not valid when the run finished, or is not now",
			"sign with a key that is valid now and was when the run finished: see `hallmark trust show`"},
		{ReasonKeyRevoked, 6, "the key is revoked",
			"run the suite again and sign with another key: what a revoked key has signed never counts again"},
		{ReasonKeyIssuer, 6, "the key belongs to another issuer",
			"run the suite with the issuer id that the policy has for the key: see `hallmark trust show`"},

		{ReasonPayloadJSON, 7, "the payload is not strict JSON of the statement's schema", remedyInspect},
		{ReasonStatementType, 7, "the payload is not an in-toto Statement v1", remedyInspect},
		{ReasonPredicateType, 7, "the predicate is not a sandbox conformance predicate v1", remedyInspect},

		{ReasonSchemaVersion, 8, "the predicate has another schema version", remedyInspect},
		{ReasonSchema, 8, "a member of the predicate has a value outside its schema", remedyInspect},
		{ReasonTimeFormat, 8, "a time is not written as UTC in whole seconds", remedyInspect},

		{ReasonSubjects, 9, "the subjects are not exactly the images and binaries", remedyInspect},
		{ReasonWanted, 9, "a requested digest is not in this statement",
			"give evidence of a run with that very image and helper, or ask for another digest with --want"},
		{ReasonSplit, 9, "bundles given together differ in cohort, binaries or launch profile",
			"give bundles of one cohort that were made with the same binaries, launch profile and configuration"},

		{ReasonCohortID, 10, "the cohort id is not the digest of its descriptor", remedyInspect},
		{ReasonCohortBinary, 10, "the cohort's runtime binary is not the sandbox binary of the statement", remedyInspect},
		{ReasonCohortOther, 10, "the cohort is not the one asked for or measured",
			"run the suite on the cohort that is asked for, or ask for the one that it ran on"},
		{ReasonHost, 10, "the evidence is not of the host that is asked for, or the policy binds hosts and one of the two is unknown",
			"run the suite on that very host, or sign a policy that binds none"},
		{ReasonFleetOther, 10, "the cohort is none of those that the policy's fleet means",
			"give evidence of the fleet only, or put the cohort into the fleet with `hallmark trust sign --fleet`"},
		{ReasonFleetAmbiguous, 10, "the cohort is meant by several entries of the policy's fleet",
			"let each entry of the fleet require what the others do not have"},
		{ReasonCapability, 10, "a capability that the policy requires is not there",
			"run the suite where the capability is there, or stop demanding it in the policy"},
		{ReasonLaunchProfile, 10, "the launch profile digest is not that of its document", remedyInspect},

		{ReasonCatalogue, 11, "the suite ran another catalogue",
			"use suite, gate and policy of one release, or give the gate the other catalogue with --catalogue"},
		{ReasonProfile, 11, "a required profile was not claimed, does not exist, or requires no case of what it is about",
			"run the suite with --profile for what the policy requires; a profile without cases can be met by nobody"},
		{ReasonClaimAbsent, 11, "the target claims a feature that the suite saw to be absent",
			"let the target claim only what it has, and give the suite what it needs to look"},
		{ReasonClaimUnchecked, 11, "the target claims a feature that the suite did not see",
			"let the target claim only what it has, and give the suite what it needs to look"},
		{ReasonCaseFailed, 11, "a case failed", remedyRun},
		{ReasonCaseMissing, 11, "a required case is missing", remedyRun},
		{ReasonCaseUnknown, 11, "a row is of no case of the catalogue", remedyRun},
		{ReasonCaseDuplicate, 11, "a case has several rows", remedyRun},
		{ReasonCaseRevision, 11, "a case ran in another revision", remedyRun},
		{ReasonCaseStatus, 11, "a status is not of the closed set, or contradicts its row", remedyRun},
		{ReasonCaseInconclusive, 11, "a case is inconclusive", remedyRun},
		{ReasonCaseError, 11, "a case ended with an error of the suite", remedyRun},
		{ReasonCaseNotRun, 11, "a case did not run", remedyRun},
		{ReasonCaseNotApplicable, 11, "a required case was called not applicable", remedyRun},
		{ReasonCaseWaived, 11, "a case was waived by the producer only",
			"put the waiver into the trust policy with `hallmark trust sign --waiver`: a producer excuses nothing"},
		{ReasonCaseAttempts, 11, "a case took more or less than one attempt", remedyRun},
		{ReasonCaseWitness, 11, "a pass has no witness", remedyRun},
		{ReasonCaseImages, 11, "a case did not run in the images of the bundle", remedyRun},
		{ReasonOracleUnarmed, 11, "an oracle that a case needs was not armed", remedyRun},

		{ReasonTree, 12, "the suite was not built from a clean, known commit",
			"build the suite from a clean commit and run it again"},
		{ReasonFilter, 12, "the run was filtered", remedyRun},
		{ReasonFocus, 12, "the run had a programmatic focus", remedyRun},
		{ReasonDryRun, 12, "the run was dry", remedyRun},
		{ReasonRetries, 12, "the run was allowed to retry", remedyRun},
		{ReasonFailFast, 12, "the run stopped at the first failure", remedyRun},
		{ReasonSuite, 12, "the runner did not report success", remedyRun},
		{ReasonArming, 12, "the arming record does not fit the run", remedyRun},
		{ReasonSeal, 12, "the seal does not fit the run", remedyRun},
		{ReasonMutation, 12, "the mutation evidence is missing, of another suite, or not signed as the policy demands",
			"use `hallmark conformance`, which adds mutation evidence, or a policy that only records it"},
		{ReasonMutant, 12, "a mutant survived, or died of something else",
			"mend the case that does not see its mutant, and run `hallmark mutants` again"},

		{ReasonSummary, 13, "the summary is not what the rows give", remedyDisagrees},
		{ReasonArtifact, 13, "an artifact is missing, or not the one that was signed",
			"get the bundle with its blobs: the gate audits, only a worker reads a bundle without them"},
		{ReasonLayout, 13, "the OCI layout is not the encoding of the signed list", remedyDisagrees},
		{ReasonRecords, 13, "the case records do not give the signed rows", remedyDisagrees},
		{ReasonReport, 13, "the runner's report does not give the signed rows", remedyDisagrees},
		{ReasonTestResult, 13, "the derived test-result statement disagrees", remedyDisagrees},

		{ReasonOrder, 14, "the times of the run are not in order",
			"set the clocks of the suite and run it again"},
		{ReasonNotYet, 14, "the evidence is not valid yet",
			"set the clocks of suite and gate, or wait"},
		{ReasonExpired, 14, "the evidence has expired", remedyAgain},
		{ReasonFuture, 14, "the run finished in the future",
			"set the clocks of suite and gate"},
		{ReasonTooOld, 14, "the run is older than the policy allows", remedyAgain},
		{ReasonValidity, 14, "the validity is longer than the policy allows",
			"run the suite again with a shorter validity, or raise maxValiditySeconds in the policy"},

		{ReasonDenied, 15, "the policy denies a digest of this bundle",
			"replace what has that digest: it was denied on purpose, see `hallmark trust show --json`"},
		{ReasonMinSequence, 15, "the sequence is below the policy's minimum",
			"run the suite again with the key's own memory of its sequence beside it"},
		{ReasonRollback, 15, "newer evidence of this key, or a newer failure of its issuer, about this image was seen before",
			"give the newest evidence; if that is a failure, mend it and run the suite again"},
		{ReasonFork, 15, "other evidence with this sequence was seen before",
			"make a new key: two runs had one sequence, so the key's memory was lost or copied"},
		{ReasonRunReused, 15, "the run id was used before by other evidence",
			"run the suite again: a run id is used once"},
		{ReasonNonce, 15, "the run was not made with the nonce that is asked for",
			"run the suite with the nonce of this request: `hallmark run --nonce`"},
		{ReasonNonceReused, 15, "another run has answered this nonce before",
			"ask with a new nonce for each decision"},

		{ReasonPayloads, 16, "signers signed different payloads",
			"let every signer sign the same bytes"},
		{ReasonThreshold, 16, "fewer distinct keys and issuers signed than the policy demands",
			"add the evidence files of further signers with other keys and identities"},

		{ReasonLogMissing, 17, "the policy demands a transparency log, and the log or the proof beside the bundle is not there",
			"give the log with --log, and let `hallmark evidence log prove` write the proof beside the bundle"},
		{ReasonLogCheckpoint, 17, "a checkpoint of the log is not signed and cosigned as the policy demands, or the log does not hold what it signs",
			"get the log again from whoever keeps it, with the cosignatures that the policy counts"},
		{ReasonLogProof, 17, "the proof does not show that the log holds the evidence",
			"let `hallmark evidence log prove` write the proof again"},
		{ReasonLogFork, 17, "the log is smaller than this gate has seen it, or another one",
			"do not release: ask whoever keeps the log, and its witnesses, which of the two is the log"},

		{ReasonExpressionError, 18, "the policy's expression did not come to true or false",
			"correct the expression of the policy: it must be true or false for every bundle; has() asks for a member"},
		{ReasonExpression, 18, "the policy's expression denies the evidence",
			"read the expression with `hallmark trust show`, and give evidence for which it is true"},

		{ReasonCohortEvidence, 19, "a required cohort of the fleet has no evidence",
			"run the suite on the cohort that is named, and give its bundle too"},
		{ReasonImageEvidence, 19, "a required cohort of the fleet has no evidence of an image",
			"run the suite with that image on the cohort that is named, or release fewer images with --image"},

		{ReasonPinsInvalid, 20, "the pins are not a valid verification summary",
			"let `hallmark gate` write the pins again"},
		{ReasonPinsSignature, 20, "the pins are not signed by a gate key of the policy",
			"let the gate sign with a gate key that the policy trusts for every cohort of the release"},
		{ReasonPinsPolicy, 20, "the pins were made under another trust policy",
			"let `hallmark gate` write the pins again under this policy"},
		{ReasonPinsEvidence, 20, "the pins do not follow from the evidence beside them",
			"give the worker the very bundles of its cohort that the gate has seen"},
		{ReasonPinsRollback, 20, "newer pins were seen before",
			"give the newest pins that this worker has seen, or let `hallmark gate` write them again"},
		{ReasonPinsMode, 20, "the pins are candidates",
			"give a production worker pins that `hallmark gate` has written"},
		{ReasonNotPinned, 20, "a digest is not pinned",
			"restore the pinned file, image or configuration, or have what is new tested and pinned"},
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

// Remedy returns what can be done about r, or "" for a code outside the table.
func (r Reason) Remedy() string {
	for _, i := range Reasons() {
		if i.Code == r {
			return i.Remedy
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
