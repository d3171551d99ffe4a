// SPDX-License-Identifier: Apache-2.0

// Package evidence says what a run of the suite proves, and decides whether it is enough.
//
// It owns the predicate, the one verdict function, the bundle's bytes, the trust policy, the
// gate's ordered checks and the pins that workers read. It never trusts a key, an algorithm,
// a catalogue or a verdict that arrives with the evidence: keys come from a policy signed by
// a root that stands outside, the catalogue is the verifier's own, and the verdict is
// computed again. There is no unsigned mode, and no policy means deny.
//
// Producers use [Verdict], [Chain] and [WriteBundle]. The release gate uses [Decide] at
// depth [Audit]; a worker uses [Admit], which reads no raw artifact. Signing lives in
// evidence/signing, the negative corpus in evidence/corpus, what moves bundles in evidence/archive
// and evidence/registry, the transparency log in evidence/translog, so that a verifier links none.
//
// Read next: predicate.go, verdict.go, gate.go, admit.go.
package evidence
