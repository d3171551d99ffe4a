// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

func stmt(f func(*evidence.Statement)) func(*draft) { return func(d *draft) { d.statement = f } }

func pred(f func(*evidence.Predicate)) func(*draft) {
	return stmt(func(s *evidence.Statement) { f(&s.Predicate) })
}

// otherDigest is a digest of nothing that is in a bundle.
func otherDigest(name string) string { return evidence.Digest([]byte("hallmark corpus " + name)) }

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func identityRows() []row {
	const g = "Identity"
	return []row{
		{"statement-v0.1", g, evidence.ReasonStatementType, stmt(func(s *evidence.Statement) { s.Type = "https://in-toto.io/Statement/v0.1" })},
		{"statement-type-missing", g, evidence.ReasonStatementType, edPayload(replace(`"_type":"https://in-toto.io/Statement/v1",`, ``))},
		{"statement-trailing-slash", g, evidence.ReasonStatementType, stmt(func(s *evidence.Statement) { s.Type += "/" })},
		{"predicate-v2", g, evidence.ReasonPredicateType, stmt(func(s *evidence.Statement) { s.PredicateType = strings.TrimSuffix(s.PredicateType, "v1") + "v2" })},
		{"predicate-trailing-slash", g, evidence.ReasonPredicateType, stmt(func(s *evidence.Statement) { s.PredicateType += "/" })},
		{"predicate-vsa", g, evidence.ReasonPredicateType, stmt(func(s *evidence.Statement) { s.PredicateType = evidence.VSAPredicateType })},
		{"test-result-as-evidence", g, evidence.ReasonPredicateType, func(d *draft) {
			d.payload = func([]byte) []byte {
				b, err := evidence.TestResult(d.st)
				if err != nil {
					d.errs = append(d.errs, err)
				}
				return b
			}
		}},
		{"schema-version-2", g, evidence.ReasonSchemaVersion, pred(func(p *evidence.Predicate) { p.SchemaVersion = 2 })},
		{"subject-digest-other", g, evidence.ReasonSubjects, stmt(func(s *evidence.Statement) { s.Subject[0].Digest.SHA256 = hexOf(otherDigest("subject")) })},
		{"subject-manifest-other", g, evidence.ReasonSubjects, stmt(func(s *evidence.Statement) {
			s.Subject[0].Annotations = map[string]string{"manifestDigest": otherDigest("index")}
		})},
		{"subject-without-image", g, evidence.ReasonSubjects, stmt(func(s *evidence.Statement) {
			s.Subject = append(s.Subject, evidence.Subject{Name: "more", Digest: evidence.DigestSet{SHA256: hexOf(otherDigest("more"))}})
		})},
		{"image-without-subject", g, evidence.ReasonSubjects, stmt(func(s *evidence.Statement) { s.Subject = s.Subject[1:] })},
		{"subject-none", g, evidence.ReasonSubjects, stmt(func(s *evidence.Statement) { s.Subject = nil })},
		{"subject-duplicate", g, evidence.ReasonSubjects, stmt(func(s *evidence.Statement) { s.Subject[1] = s.Subject[0] })},
		{"subject-1025", g, evidence.ReasonSubjects, stmt(func(s *evidence.Statement) {
			for len(s.Subject) < evidence.MaxSubjects+1 {
				s.Subject = append(s.Subject, s.Subject[0])
			}
		})},
		{"images-1025", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) {
			for len(p.Images) < evidence.MaxSubjects+1 {
				p.Images = append(p.Images, p.Images[0])
			}
		})},
		{"config-digest-as-manifest", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Images[0].ManifestDigest = p.Images[0].ConfigDigest })},
		{"digest-upper-case", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) {
			p.Images[0].ConfigDigest = "sha256:" + strings.ToUpper(hexOf(otherDigest("upper")))
		})},
		{"image-by-tag", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Images[0].ConfigDigest = "busybox:latest" })},
		{"wanted-workload-missing", g, evidence.ReasonWanted, func(d *draft) { d.args = []string{"--want", otherDigest("workload")} }},
		{"wanted-helper-missing", g, evidence.ReasonWanted, func(d *draft) {
			d.args = []string{"--want", d.st.Predicate.Images[0].ConfigDigest, "--want", otherDigest("helper")}
		}},
		{"helper-in-another-bundle", g, evidence.ReasonSplit, func(d *draft) {
			d.alsoGive = func(second *draft) {
				i := slices.IndexFunc(second.st.Predicate.Binaries, func(b evidence.Binary) bool { return b.Role != evidence.BinarySandbox })
				second.st.Predicate.Binaries[i].Digest = otherDigest("helper")
			}
		}},
	}
}

// measured changes the cohort and computes its id again, as an honest producer would.
func measured(f func(*evidence.CohortDescriptor)) func(*draft) {
	return func(d *draft) {
		d.args = []string{"--cohort", d.st.Predicate.Cohort.ID}
		p := &d.st.Predicate
		f(&p.Cohort.Descriptor)
		id, err := evidence.CohortID(p.Cohort.Descriptor)
		if err != nil {
			d.errs = append(d.errs, err)
		}
		p.Cohort.ID, p.Run.Arming.CohortID = id, id
		d.reseal()
	}
}

func cohortRows() []row {
	const g = "Cohort"
	return []row{
		{"cohort-id-of-another", g, evidence.ReasonCohortID, pred(func(p *evidence.Predicate) { p.Cohort.ID = otherDigest("cohort") })},
		{"cohort-descriptor-changed", g, evidence.ReasonCohortID, pred(func(p *evidence.Predicate) { p.Cohort.Descriptor.Kernel.Release += "-other" })},
		{"cohort-other-kernel", g, evidence.ReasonCohortOther, measured(func(c *evidence.CohortDescriptor) { c.Kernel.Release += "-other" })},
		{"cohort-extra-flag", g, evidence.ReasonCohortOther, measured(func(c *evidence.CohortDescriptor) { c.Runtime.Args = append(c.Runtime.Args, "--debug") })},
		{"cohort-engine-configuration", g, evidence.ReasonCohortOther, measured(func(c *evidence.CohortDescriptor) { c.Engine.UserNamespaces = !c.Engine.UserNamespaces })},
		{"cohort-same-version-other-binary", g, evidence.ReasonCohortOther, func(d *draft) {
			measured(func(c *evidence.CohortDescriptor) { c.Runtime.BinaryDigest = otherDigest("runsc") })(d)
			i := slices.IndexFunc(d.st.Predicate.Binaries, func(b evidence.Binary) bool { return b.Role == evidence.BinarySandbox })
			d.st.Predicate.Binaries[i].Digest = otherDigest("runsc")
		}},
		{"cohort-binary-not-the-subject", g, evidence.ReasonCohortBinary, func(d *draft) {
			measured(func(c *evidence.CohortDescriptor) { c.Runtime.BinaryDigest = otherDigest("runsc") })(d)
		}},
		{"cohort-asked-for-another", g, evidence.ReasonCohortOther, func(d *draft) { d.args = []string{"--cohort", otherDigest("cohort")} }},
		{"capability-missing", g, evidence.ReasonCapability, func(d *draft) { d.policy.RequiredCapabilities = map[string]string{"no.such": "yes"} }},
		{"capability-demanded-empty", g, evidence.ReasonPolicyInvalid, func(d *draft) { d.policy.RequiredCapabilities = map[string]string{"no.such": ""} }},
		{"launch-profile-document", g, evidence.ReasonLaunchProfile, pred(func(p *evidence.Predicate) { p.LaunchProfile.Document += " " })},
		{"run-id-reused", g, evidence.ReasonRunReused, func(d *draft) {
			d.st.Predicate.Run.Sequence += 10
			d.before = []func(*draft){func(*draft) {}}
		}},
	}
}

// hostRows are about evidence that is of one host only, and of one request.
func hostRows() []row {
	const g = "Host"
	const asked = "0123456789abcdef"
	here, there := otherDigest("host"), otherDigest("another host")
	of := func(host string, bound bool, args ...string) func(*draft) {
		return func(d *draft) {
			d.st.Predicate.Run.Host, d.policy.BindHosts, d.args = host, bound, args
		}
	}
	answers := func(nonce string, args ...string) func(*draft) {
		return func(d *draft) { d.st.Predicate.Run.Nonce, d.args = nonce, args }
	}
	return []row{
		{"host-bound", g, "", of(here, true)},
		{"host-asked-for", g, "", of(here, false, "--host", here)},
		{"host-bound-and-asked-for", g, "", of(here, true, "--host", here)},
		{"host-bound-of-none", g, evidence.ReasonHost, of("", true)},
		{"host-another", g, evidence.ReasonHost, of(here, false, "--host", there)},
		{"host-bound-another", g, evidence.ReasonHost, of(here, true, "--host", there)},
		{"host-none-asked-for", g, evidence.ReasonHost, of("", false, "--host", here)},
		{"host-no-digest", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Run.Host = "here" })},
		{"nonce-answered", g, "", answers(asked, "--nonce", asked)},
		{"nonce-not-asked-for", g, "", answers(asked)},
		{"nonce-missing", g, evidence.ReasonNonce, answers("", "--nonce", asked)},
		{"nonce-wrong", g, evidence.ReasonNonce, answers(asked, "--nonce", asked+"0")},
		{"nonce-reused", g, evidence.ReasonNonceReused, func(d *draft) {
			answers(asked, "--nonce", asked)(d)
			d.newRun(d.st.Predicate.Run.Sequence + 10)
			d.before = []func(*draft){func(e *draft) { e.st.Predicate.Run.Nonce = asked }}
		}},
		{"nonce-too-short", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Run.Nonce = "0123" })},
	}
}

// times sets the run's times, consistently, and the validity.
func (d *draft) times(started, finished, from, to time.Duration) {
	p := &d.st.Predicate
	at := func(t time.Duration) evidence.Timestamp { return evidence.At(d.now.Add(t)) }
	p.Run.StartedAt, p.Run.FinishedAt, p.Run.Arming.StartedAt = at(started), at(finished), at(started)
	p.Validity = evidence.Validity{NotBefore: at(from), NotAfter: at(to)}
	d.reseal()
}

func when(started, finished, from, to time.Duration) func(*draft) {
	return func(d *draft) { d.times(started, finished, from, to) }
}

func timeRows() []row {
	const g = "Time"
	const h, day = time.Hour, 24 * time.Hour
	return []row{
		{"expired-by-a-second", g, evidence.ReasonExpired, when(-3*h, -2*h, -2*h, -time.Second)},
		{"not-yet-valid", g, evidence.ReasonNotYet, when(-3*h, -2*h, day, 2*day)},
		{"finished-in-the-future", g, evidence.ReasonFuture, when(-3*h, day, -2*h, 2*day)},
		{"finished-before-started", g, evidence.ReasonOrder, when(-2*h, -3*h, -2*h, day)},
		{"valid-until-before-from", g, evidence.ReasonOrder, when(-3*h, -2*h, 2*day, day)},
		{"validity-too-long", g, evidence.ReasonValidity, func(d *draft) {
			d.policy.MaxValiditySeconds = 86400
			d.times(-3*h, -2*h, -2*h, day)
		}},
		{"too-old", g, evidence.ReasonTooOld, func(d *draft) {
			d.policy.MaxAgeSeconds = 3600
			d.times(-3*h, -2*h, -2*h, day)
		}},
		{"time-with-offset", g, evidence.ReasonTimeFormat, pred(func(p *evidence.Predicate) {
			p.Run.FinishedAt = evidence.Timestamp(strings.TrimSuffix(string(p.Run.FinishedAt), "Z") + "+00:00")
		})},
		{"time-with-fraction", g, evidence.ReasonTimeFormat, pred(func(p *evidence.Predicate) {
			p.Run.FinishedAt = evidence.Timestamp(strings.TrimSuffix(string(p.Run.FinishedAt), "Z") + ".0Z")
		})},
		{"time-leap-second", g, evidence.ReasonTimeFormat, pred(func(p *evidence.Predicate) { p.Validity.NotBefore = "2016-12-31T23:59:60Z" })},
		{"time-lower-case", g, evidence.ReasonTimeFormat, pred(func(p *evidence.Predicate) {
			p.Validity.NotAfter = evidence.Timestamp(strings.ToLower(string(p.Validity.NotAfter)))
		})},
		{"older-sequence", g, evidence.ReasonRollback, func(d *draft) {
			next := d.st.Predicate.Run.Sequence + 1
			d.before = []func(*draft){func(e *draft) { e.newRun(next) }}
		}},
		{"older-pass-after-newer-failure", g, evidence.ReasonRollback, func(d *draft) {
			next := d.st.Predicate.Run.Sequence + 1
			d.before = []func(*draft){func(e *draft) {
				e.st.Predicate.Cases[0].Status, e.st.Predicate.Cases[0].Reason = evidence.StatusFail, "escaped"
				e.newRun(next)
			}}
		}},
		{"older-pass-after-newer-failure-and-false-claim", g, evidence.ReasonRollback, func(d *draft) {
			next := d.st.Predicate.Run.Sequence + 1
			d.before = []func(*draft){func(e *draft) {
				// The claim is a finding of the run, so it comes first and gives the decision's reason.
				features(func(p *evidence.Predicate, i int) { p.Run.Arming.Features[i].Observed = evidence.FeatureAbsent })(e)
				e.st.Predicate.Cases[0].Status, e.st.Predicate.Cases[0].Reason = evidence.StatusFail, "escaped"
				e.newRun(next)
			}}
		}},
		{"older-pass-of-another-key-after-newer-failure", g, evidence.ReasonRollback, func(d *draft) {
			// Both keys are the issuer's, as while one follows the other. Their sequences say nothing of each other.
			d.trustKey(d.ring.second, d.st.Predicate.Issuer.ID)
			d.before = []func(*draft){func(e *draft) {
				e.trustKey(e.ring.second, e.st.Predicate.Issuer.ID)
				e.signer = e.ring.second
				e.st.Predicate.Cases[0].Status, e.st.Predicate.Cases[0].Reason = evidence.StatusFail, "escaped"
				finished, _ := e.st.Predicate.Run.FinishedAt.Time()
				e.st.Predicate.Run.FinishedAt = evidence.At(finished.Add(time.Second))
				e.newRun(1)
			}}
		}},
		{"same-sequence-other-digest", g, evidence.ReasonFork, func(d *draft) {
			same := d.st.Predicate.Run.Sequence
			d.before = []func(*draft){func(e *draft) { e.newRun(same) }}
		}},
		{"key-revoked-before", g, evidence.ReasonKeyRevoked, func(d *draft) { d.entry(d.ring.evidence).RevokedAt = evidence.At(d.now.AddDate(-1, 0, 0)) }},
		{"key-revoked-later", g, evidence.ReasonKeyRevoked, func(d *draft) { d.entry(d.ring.evidence).RevokedAt = evidence.At(d.now.Add(-time.Second)) }},
		{"key-expired", g, evidence.ReasonKeyTime, func(d *draft) { d.entry(d.ring.evidence).NotAfter = evidence.At(d.now.Add(-time.Second)) }},
		{"key-younger-than-run", g, evidence.ReasonKeyTime, func(d *draft) {
			d.times(-3*h, -2*h, -2*h, day)
			d.entry(d.ring.evidence).NotBefore = evidence.At(d.now.Add(-h))
		}},
		{"key-out-of-scope", g, evidence.ReasonKeyScope, func(d *draft) { d.entry(d.ring.evidence).Cohorts = otherDigest("cohort") }},
		{"implementer-key-as-release", g, evidence.ReasonKeyRole, func(d *draft) {
			d.policyKey(d.ring.implementer, evidence.RoleImplementer, d.st.Predicate.Issuer.ID)
			d.signer = d.ring.implementer
			d.st.Predicate.Issuer.Role = evidence.RoleRelease
		}},
		{"role-without-threshold", g, evidence.ReasonKeyRole, func(d *draft) {
			d.policyKey(d.ring.implementer, evidence.RoleImplementer, d.st.Predicate.Issuer.ID)
			d.signer = d.ring.implementer
			d.st.Predicate.Issuer.Role = evidence.RoleImplementer
			delete(d.policy.Thresholds, evidence.RoleImplementer)
		}},
		{"gate-key-signs-evidence", g, evidence.ReasonKeyRole, func(d *draft) { d.signer = d.ring.gate }},
		{"issuer-of-another-key", g, evidence.ReasonKeyIssuer, func(d *draft) { d.st.Predicate.Issuer.ID = "somebody.else" }},
	}
}
