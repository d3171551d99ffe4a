// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bytes"
	"crypto/elliptic"
	"encoding/asn1"
	"encoding/base64"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// onBlob changes the blob of an artifact in the finished bundle; nil removes it.
func onBlob(role string, f func([]byte) []byte) func(*draft) {
	return func(d *draft) {
		name := evidence.BlobName(evidence.Digest(d.blob(role)))
		d.files = func(files map[string][]byte) {
			if changed := f(bytes.Clone(files[name])); changed != nil {
				files[name] = changed
			} else {
				delete(files, name)
			}
		}
	}
}

// rawBlob changes an artifact before it is listed and signed.
func rawBlob(role string, f func([]byte) []byte) func(*draft) {
	return func(d *draft) {
		old := d.blob(role)
		changed := f(bytes.Clone(old))
		if bytes.Equal(old, changed) {
			d.errs = append(d.errs, fmt.Errorf("artifact of role %s was not changed", role))
		}
		d.setBlob(role, changed)
	}
}

func put(name string, data []byte) func(*draft) {
	return func(d *draft) { d.files = func(files map[string][]byte) { files[name] = data } }
}

func onFile(name string, f func([]byte) []byte) func(*draft) {
	return func(d *draft) { d.files = func(files map[string][]byte) { files[name] = f(bytes.Clone(files[name])) } }
}

func onDisk(f func(bundle string) error) func(*draft) { return func(d *draft) { d.dir = f } }

func artifactRows() []row {
	const g = "Artifacts"
	return []row{
		{"blob-missing", g, evidence.ReasonFileGone, onBlob(evidence.ArtifactRecords, func([]byte) []byte { return nil })},
		{"blob-truncated", g, evidence.ReasonArtifact, onBlob(evidence.ArtifactRecords, func(b []byte) []byte { return b[:len(b)-1] })},
		{"blob-extended", g, evidence.ReasonArtifact, onBlob(evidence.ArtifactRecords, func(b []byte) []byte { return append(b, '\n') })},
		{"blob-changed", g, evidence.ReasonArtifact, onBlob(evidence.ArtifactGinkgo, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })},
		{"blobs-swapped", g, evidence.ReasonArtifact, func(d *draft) {
			a := evidence.BlobName(evidence.Digest(d.blob(evidence.ArtifactRecords)))
			b := evidence.BlobName(evidence.Digest(d.blob(evidence.ArtifactGinkgo)))
			d.files = func(files map[string][]byte) { files[a], files[b] = files[b], files[a] }
		}},
		{"blob-unlisted", g, evidence.ReasonFileExtra, put(evidence.BlobName(evidence.Digest([]byte("unlisted"))), []byte("unlisted"))},
		{"file-unlisted", g, evidence.ReasonFileExtra, put("README", []byte("hello"))},
		{"file-hidden", g, evidence.ReasonFileExtra, put(".note", nil)},
		{"blob-name-upper-case", g, evidence.ReasonFileExtra, put("blobs/sha256/"+strings.Repeat("A", 64), []byte("x"))},
		{"blob-other-algorithm", g, evidence.ReasonFileExtra, put("blobs/sha512/"+strings.Repeat("a", 128), []byte("x"))},
		{"oci-layout-missing", g, evidence.ReasonFileGone, func(d *draft) { d.files = func(f map[string][]byte) { delete(f, "oci-layout") } }},
		{"oci-layout-other-version", g, evidence.ReasonLayout, onFile("oci-layout", replace("1.0.0", "1.0.1"))},
		{"index-white-space", g, evidence.ReasonLayout, onFile("index.json", func(b []byte) []byte { return append(b, '\n') })},
		{"index-other-manifest", g, evidence.ReasonLayout, onFile("index.json", replace("sha256:", "sha256:0"))},
		{"index-too-large", g, evidence.ReasonFileSize, onFile("index.json", func([]byte) []byte { return bytes.Repeat([]byte{' '}, 5<<20) })},
		{"bundle-too-large", g, evidence.ReasonFileSize, onFile(evidence.EvidenceFile, func([]byte) []byte { return bytes.Repeat([]byte{' '}, 13<<20) })},
		{"blob-is-a-symlink", g, evidence.ReasonFileKind, onDisk(func(dir string) error {
			name := filepath.Join(dir, "oci-layout")
			return relink(name, func() error { return os.Symlink("index.json", name) })
		})},
		{"directory-is-a-symlink", g, evidence.ReasonFileKind, onDisk(func(dir string) error {
			if err := os.Rename(filepath.Join(dir, "blobs"), filepath.Join(filepath.Dir(dir), "elsewhere")); err != nil {
				return err
			}
			return os.Symlink("../elsewhere", filepath.Join(dir, "blobs"))
		})},
		{"blob-is-a-directory", g, evidence.ReasonFileExtra, onDisk(func(dir string) error {
			name := filepath.Join(dir, "index.json")
			return relink(name, func() error { return os.Mkdir(name, 0o755) })
		})},
		{"evidence-missing", g, evidence.ReasonFileGone, onDisk(func(dir string) error { return os.Remove(filepath.Join(dir, evidence.EvidenceFile)) })},
		{"artifacts-root", g, evidence.ReasonArtifact, pred(func(p *evidence.Predicate) { p.Artifacts.Root = otherDigest("root") })},
		{"artifact-name-dot-dot", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Artifacts.Items[0].Name = "../x" })},
		{"artifact-name-absolute", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Artifacts.Items[0].Name = "/x" })},
		{"artifact-name-twice", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Artifacts.Items[1].Name = p.Artifacts.Items[0].Name })},
		{"artifact-of-case-not-listed", g, evidence.ReasonArtifact, firstRow(func(r *evidence.CaseRow) { r.Artifacts = []string{otherDigest("artifact")} })},
		{"records-missing", g, evidence.ReasonRecords, func(d *draft) {
			d.blobs = slices.DeleteFunc(d.blobs, func(b evidence.Blob) bool { return b.Role == evidence.ArtifactRecords })
		}},
		{"records-say-other", g, evidence.ReasonRecords, func(d *draft) {
			signed := slices.Clone(d.st.Predicate.Cases)
			d.st.Predicate.Cases[0].DurationMs++
			d.reseal()
			d.st.Predicate.Cases = signed
		}},
		{"records-one-more", g, evidence.ReasonSeal, rawBlob(evidence.ArtifactRecords, func(b []byte) []byte {
			line, _, _ := bytes.Cut(b, []byte("\n"))
			return append(append(b, line...), '\n')
		})},
		{"records-cut", g, evidence.ReasonRecords, rawBlob(evidence.ArtifactRecords, func(b []byte) []byte { return b[:len(b)-1] })},
		{"report-missing", g, evidence.ReasonReport, func(d *draft) {
			d.blobs = slices.DeleteFunc(d.blobs, func(b evidence.Blob) bool { return b.Role == evidence.ArtifactGinkgo })
		}},
		{"report-case-failed", g, evidence.ReasonReport, rawBlob(evidence.ArtifactGinkgo, replaceOne(`"passed"`, `"failed"`))},
		{"report-case-skipped", g, evidence.ReasonReport, rawBlob(evidence.ArtifactGinkgo, replaceOne(`"passed"`, `"skipped"`))},
		{"report-case-panicked", g, evidence.ReasonReport, rawBlob(evidence.ArtifactGinkgo, replaceOne(`"passed"`, `"panicked"`))},
		{"report-case-pending", g, evidence.ReasonReport, rawBlob(evidence.ArtifactGinkgo, replaceOne(`"passed"`, `"pending"`))},
		{"report-case-interrupted", g, evidence.ReasonReport, rawBlob(evidence.ArtifactGinkgo, replaceOne(`"passed"`, `"interrupted"`))},
		{"report-not-json", g, evidence.ReasonReport, rawBlob(evidence.ArtifactGinkgo, func([]byte) []byte { return []byte("[") })},
		{"report-empty", g, evidence.ReasonReport, rawBlob(evidence.ArtifactGinkgo, func([]byte) []byte { return []byte("[]") })},
		{"report-other-seed", g, evidence.ReasonReport, ginkgo(func(r *evidence.Ginkgo) { r.Seed++ })},
		{"derived-statement-other", g, evidence.ReasonTestResult, func(d *draft) {
			// Derived from other limits: the listed test-result is of a failed run.
			d.st.Predicate.Summary.Verdict = evidence.Incomplete
			d.statement = func(s *evidence.Statement) { s.Predicate.Summary.Verdict = evidence.Conformant }
		}},
	}
}

func replaceOne(old, with string) func([]byte) []byte {
	return func(b []byte) []byte {
		// Ginkgo indents its report and states stand in many places: take the first "It".
		at := bytes.Index(b, []byte(`"It"`))
		if at < 0 {
			return b
		}
		return append(bytes.Clone(b[:at]), bytes.Replace(b[at:], []byte(old), []byte(with), 1)...)
	}
}

// relink removes a file, which may be a link into another row, and puts something in its place.
func relink(name string, f func() error) error {
	if err := os.Remove(name); err != nil {
		return err
	}
	return f()
}

// otherSignature is the base64 form of (r, n-s) for that of (r, s) of P-256.
func otherSignature(text string) (string, error) {
	sig, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", err
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(sig, &rs); err != nil {
		return "", err
	}
	rs.S.Sub(elliptic.P256().Params().N, rs.S)
	sig, err = asn1.Marshal(rs)
	return base64.StdEncoding.EncodeToString(sig), err
}

func policyRows() []row {
	const g = "Policy"
	edit := func(f func(*evidence.TrustPolicy)) func(*draft) { return func(d *draft) { f(&d.policy) } }
	return []row{
		{"policy-empty", g, evidence.ReasonPolicyMissing, func(d *draft) { d.noTrust = true }},
		{"policy-not-json", g, evidence.ReasonPolicyInvalid, func(d *draft) { d.trust = func([]byte) []byte { return []byte("{") } }},
		{"policy-of-other-root", g, evidence.ReasonPolicySignature, func(d *draft) { d.rootKey = d.ring.stranger }},
		{"policy-signed-by-evidence-key", g, evidence.ReasonPolicySignature, func(d *draft) { d.rootKey = d.ring.evidence }},
		{"policy-signature-changed", g, evidence.ReasonPolicySignature, func(d *draft) {
			d.trust = rewriteString("sig", func(s string) string { return "AAAA" + s[4:] })
		}},
		{"policy-unsigned", g, evidence.ReasonPolicySignature, func(d *draft) {
			d.trust = func(b []byte) []byte {
				head, _, _ := strings.Cut(string(b), `"signatures":[`)
				return []byte(head + `"signatures":[]}`)
			}
		}},
		{"policy-expired", g, evidence.ReasonPolicyExpired, func(d *draft) { d.policy.Expires = evidence.At(d.now.Add(-time.Second)) }},
		{"policy-older", g, evidence.ReasonPolicyRollback, func(d *draft) { d.olderSeen = func(p *evidence.TrustPolicy) { p.Version++ } }},
		{"policy-same-version-other", g, evidence.ReasonPolicyRollback, func(d *draft) { d.olderSeen = func(p *evidence.TrustPolicy) { p.MaxAgeSeconds++ } }},
		{"policy-of-new-root-alone", g, evidence.ReasonPolicyRotation, func(d *draft) {
			d.newRoots = []key{d.ring.stranger}
			d.olderSeen = func(p *evidence.TrustPolicy) { p.Version-- }
		}},
		{"policy-of-old-and-new-root", g, "", func(d *draft) {
			d.newRoots = []key{d.ring.root, d.ring.stranger}
			d.olderSeen = func(p *evidence.TrustPolicy) { p.Version-- }
		}},
		{"policy-of-old-and-unknown-root", g, evidence.ReasonPolicySignature, func(d *draft) {
			d.trust = func(b []byte) []byte {
				var e evidence.Envelope
				err := strictjson.Unmarshal(b, &e, strictjson.Limits{Bytes: 16 << 20, StringBytes: 16 << 20})
				if err == nil {
					var sig []byte
					sig, err = d.ring.stranger.Sign(evidence.PAE(e.PayloadType, e.Payload))
					e.Signatures = append(e.Signatures, evidence.Signature{Sig: sig, KeyID: d.ring.stranger.public.Hint()})
					slices.SortFunc(e.Signatures, func(a, b evidence.Signature) int { return strings.Compare(a.KeyID, b.KeyID) })
				}
				if err == nil {
					b, err = strictjson.Marshal(e)
				}
				if err != nil {
					d.errs = append(d.errs, err)
				}
				return b
			}
		}},
		{"policy-signed-twice-by-one-root", g, evidence.ReasonPolicySignature, func(d *draft) {
			d.trust = func(b []byte) []byte {
				head, sig, _ := strings.Cut(string(b), `"signatures":[`)
				sig = strings.TrimSuffix(sig, "]}")
				return []byte(head + `"signatures":[` + sig + "," + sig + "]}")
			}
		}},
		{"policy-age-of-centuries", g, evidence.ReasonPolicyInvalid, edit(func(p *evidence.TrustPolicy) { p.MaxAgeSeconds = 1 << 40 })},
		{"policy-unknown-member", g, evidence.ReasonPolicyInvalid, func(d *draft) { d.doc = replace(`{"schemaVersion"`, `{"unsafe":true,"schemaVersion"`) }},
		{"policy-duplicate-name", g, evidence.ReasonPolicyInvalid, func(d *draft) { d.doc = replace(`{"schemaVersion"`, `{"schemaVersion":1,"schemaVersion"`) }},
		{"policy-no-keys", g, evidence.ReasonPolicyInvalid, edit(func(p *evidence.TrustPolicy) { p.Keys = nil })},
		{"policy-no-profile", g, evidence.ReasonPolicyInvalid, edit(func(p *evidence.TrustPolicy) { p.Profiles = nil })},
		{"policy-unknown-profile", g, evidence.ReasonPolicyInvalid, edit(func(p *evidence.TrustPolicy) { p.Profiles = []string{"no-such"} })},
		{"policy-empty-catalogue", g, evidence.ReasonPolicyInvalid, edit(func(p *evidence.TrustPolicy) { p.Catalogue.Cases = nil })},
		{"policy-threshold-zero", g, evidence.ReasonPolicyInvalid, edit(func(p *evidence.TrustPolicy) {
			p.Thresholds = maps.Collect(func(yield func(string, int64) bool) { yield(evidence.RoleCI, 0) })
		})},
		{"policy-threshold-two", g, evidence.ReasonThreshold, func(d *draft) { d.policy.Thresholds[d.st.Predicate.Issuer.Role] = 2 }},
		{"policy-clock-skew-day", g, evidence.ReasonPolicyInvalid, edit(func(p *evidence.TrustPolicy) { p.ClockSkewSeconds = 86400 })},
		{"policy-denies-image", g, evidence.ReasonDenied, func(d *draft) { d.policy.DeniedDigests = []string{d.st.Predicate.Images[0].ManifestDigest} }},
		{"policy-denies-binary", g, evidence.ReasonDenied, func(d *draft) { d.policy.DeniedDigests = []string{d.st.Predicate.Binaries[0].Digest} }},
		{"policy-denies-evidence-that-was-signed-another-way", g, evidence.ReasonDenied, func(d *draft) {
			// (r, n-s) is a signature where (r, s) is, and nobody needs the key to make it.
			d.signer = d.ring.ecdsa
			d.trustKey(d.ring.ecdsa, d.st.Predicate.Issuer.ID)
			d.files = func(files map[string][]byte) {
				d.policy.DeniedDigests = []string{evidence.Digest(files[evidence.EvidenceFile])}
				files[evidence.EvidenceFile] = rewriteString("sig", func(s string) string {
					other, err := otherSignature(s)
					d.errs = append(d.errs, err)
					return other
				})(files[evidence.EvidenceFile])
			}
		}},
		{"policy-minimum-sequence", g, evidence.ReasonMinSequence, func(d *draft) {
			p := d.st.Predicate
			d.policy.MinimumSequences = []evidence.MinimumSequence{{Issuer: p.Issuer.ID, Cohort: "*", Sequence: p.Run.Sequence + 1}}
		}},
		{"policy-without-gate-key", g, evidence.ReasonPinsSignature, func(d *draft) { d.entry(d.ring.gate).Role = evidence.RoleMutation }},
		{"policy-gate-key-revoked", g, evidence.ReasonPinsSignature, func(d *draft) { d.entry(d.ring.gate).RevokedAt = evidence.At(d.now) }},
		{"unsigned-beside-signed", g, evidence.ReasonBundleJSON, put("evidence.2.sigstore.json", []byte(`{"_type":"https://in-toto.io/Statement/v1"}`))},
	}
}
