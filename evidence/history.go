// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// times is step 14. The clock skew of the policy is granted for what lies in the future only:
// an expired bundle is expired.
func (x *examination) times() error {
	p, d := x.statement.Predicate, x.q.Policy.doc
	at := func(t Timestamp) time.Time { v, _ := t.Time(); return v }
	started, finished := at(p.Run.StartedAt), at(p.Run.FinishedAt)
	from, to := at(p.Validity.NotBefore), at(p.Validity.NotAfter)
	skew := time.Duration(d.ClockSkewSeconds) * time.Second
	switch {
	case finished.Before(started) || to.Before(from):
		return deny(ReasonOrder, "run %s to %s, valid %s to %s", p.Run.StartedAt, p.Run.FinishedAt, p.Validity.NotBefore, p.Validity.NotAfter)
	case finished.After(x.q.Now.Add(skew)):
		return deny(ReasonFuture, "at %s", p.Run.FinishedAt)
	case from.After(x.q.Now.Add(skew)):
		return deny(ReasonNotYet, "from %s", p.Validity.NotBefore)
	case !x.q.Now.Before(to):
		return deny(ReasonExpired, "at %s", p.Validity.NotAfter)
	case to.Sub(from) > time.Duration(d.MaxValiditySeconds)*time.Second:
		return deny(ReasonValidity, "%s, at most %d s", to.Sub(from), d.MaxValiditySeconds)
	case x.q.Now.Sub(finished) > time.Duration(d.MaxAgeSeconds)*time.Second:
		return deny(ReasonTooOld, "finished at %s, at most %d s ago", p.Run.FinishedAt, d.MaxAgeSeconds)
	}
	return nil
}

// history is step 15.
func (x *examination) history() error {
	p, policy := x.statement.Predicate, x.q.Policy
	if len(policy.doc.DeniedDigests) > 0 {
		named := x.named()
		for _, dig := range policy.doc.DeniedDigests {
			if slices.Contains(named, dig) {
				return deny(ReasonDenied, "%s", dig)
			}
		}
	}
	if m := policy.minimum(p.Issuer.ID, p.Cohort.ID); p.Run.Sequence < m {
		return deny(ReasonMinSequence, "%d, minimum %d", p.Run.Sequence, m)
	}
	if x.q.Nonce != "" && p.Run.Nonce != x.q.Nonce {
		return deny(ReasonNonce, "%q, want %q", p.Run.Nonce, x.q.Nonce)
	}
	if err := x.q.Memory.checkNonce(p.Cohort.ID, x.boundHost(), x.q.Nonce, Digest(x.payload)); err != nil {
		return err
	}
	if err := x.q.Memory.checkFailures(p, Digest(x.payload)); err != nil {
		return err
	}
	for _, s := range x.signers {
		if err := x.q.Memory.checkRun(s.key.SPKIDigest, p.Cohort.ID, workloads(p.Images), p.Run, Digest(x.payload)); err != nil {
			return err
		}
	}
	return nil
}

// named are the digests that stand anywhere that matters: image, manifest, binary, suite, cohort, runtime,
// engine, payload, evidence file.
func (x *examination) named() []string {
	p := x.statement.Predicate
	e := p.Cohort.Descriptor.Engine
	all := []string{
		p.Suite.BinaryDigest, p.Suite.CatalogueDigest, p.Cohort.ID, p.Cohort.Descriptor.Runtime.BinaryDigest,
		e.EngineDigest, e.ContainerdDigest, e.ShimDigest, p.LaunchProfile.Digest, p.WorkerConfig.Digest, Digest(x.payload),
	}
	for _, m := range p.Images {
		all = append(all, m.ConfigDigest, m.ManifestDigest)
	}
	for _, b := range p.Binaries {
		all = append(all, b.Digest)
	}
	for _, s := range x.signers {
		all = append(all, x.b.files[s.file].digest(), x.twin(s))
	}
	return all
}

// twin is the digest of the one other evidence file that says the same under the same key, without that key:
// whoever has an ECDSA signature (r, s) has (r, n-s) too. It is "" for Ed25519, which allows none.
func (x *examination) twin(s signer) string {
	var b SigstoreBundle
	if s.key.Algorithm != ECDSAP256 || decodeCanonical(x.b.files[s.file].data, &b) != nil {
		return ""
	}
	other, err := twinSignature(b.DSSEEnvelope.Signatures[0].Sig)
	if err != nil {
		return ""
	}
	b.DSSEEnvelope.Signatures[0].Sig = other
	text, err := strictjson.Marshal(b)
	if err != nil {
		return ""
	}
	return Digest(text)
}

// threshold is step 16. Payload equality was checked with the envelopes. A key counts once
// whatever it is called, and an identity counts once however many keys it has.
func (x *examination) threshold() error {
	role := x.statement.Predicate.Issuer.Role
	want := x.q.Policy.doc.Thresholds[role]
	keys, ids := map[string]bool{}, map[string]bool{}
	for _, s := range x.signers {
		keys[s.key.SPKIDigest], ids[s.key.Identity] = true, true
	}
	if n := int64(min(len(keys), len(ids))); n < want {
		return deny(ReasonThreshold, "%d of %d for role %s", n, want, role)
	}
	return nil
}
