// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// TrustPolicy says whose evidence counts, and when. It is the payload of a DSSE envelope
// signed by a root key; the root's public key stands in the configuration of gate and worker,
// never in here.
type TrustPolicy struct {
	SchemaVersion        int64             `json:"schemaVersion"`
	Version              int64             `json:"version"` // only rises
	Expires              Timestamp         `json:"expires"`
	Keys                 []PolicyKey       `json:"keys"` // sorted by spkiDigest, unique
	Thresholds           map[string]int64  `json:"thresholds"`
	MaxAgeSeconds        int64             `json:"maxAgeSeconds"`      // of a run, from finishedAt
	MaxValiditySeconds   int64             `json:"maxValiditySeconds"` // notAfter - notBefore
	ClockSkewSeconds     int64             `json:"clockSkewSeconds"`   // at most 300
	Profiles             []string          `json:"profiles"`           // required; sorted, not empty
	Catalogue            Catalogue         `json:"catalogue"`          // whole, so that a worker can judge too
	MutationEvidence     string            `json:"mutationEvidence"`   // MutationRequired or MutationRecorded
	Waivers              []Waiver          `json:"waivers"`            // see [Verdict]; one that has ended stays and does nothing
	MinimumSequences     []MinimumSequence `json:"minimumSequences"`
	DeniedDigests        []string          `json:"deniedDigests"`
	RequiredCapabilities map[string]string `json:"requiredCapabilities"`
	// Fleet names the cohorts that a release needs, sorted by name. Without it a release is of the
	// one cohort whose evidence is given.
	Fleet []FleetCohort `json:"fleet,omitempty"`
	Log   *PolicyLog    `json:"log,omitempty"` // nil demands none
	// BindHosts lets evidence count on the very host that it was made on only: cohorts are alike, and hosts are
	// not the same.
	BindHosts bool `json:"bindHosts,omitempty"`
	// Expression is CEL over what was admitted, which only the gate evaluates and which can only deny.
	Expression string `json:"expression,omitempty"`
}

const (
	// maxSeconds is a century: far below what a time.Duration holds, which would turn round beyond it.
	maxSeconds = 100 * 366 * 86400
	// MaxExpression bounds a policy's expression in bytes.
	MaxExpression = 4096
)

// What a policy asks of mutation evidence.
const (
	MutationRequired = "required"
	MutationRecorded = "recorded" // shown when there, not demanded
)

// PolicyKey is one key and the bounds of its word. A role in Thresholds counts distinct keys
// with distinct identities.
type PolicyKey struct {
	SPKIDigest string    `json:"spkiDigest"`
	SPKI       []byte    `json:"spki"` // DER
	Algorithm  string    `json:"algorithm"`
	Role       string    `json:"role"`
	Identity   string    `json:"identity"` // issuer.id of what it signs
	Cohorts    string    `json:"cohorts"`  // path.Match pattern on cohort ids, "*" for all
	NotBefore  Timestamp `json:"notBefore"`
	NotAfter   Timestamp `json:"notAfter"`
	RevokedAt  Timestamp `json:"revokedAt,omitempty"`
}

// MinimumSequence refuses older evidence of one issuer on one cohort ("*" for all).
type MinimumSequence struct {
	Issuer   string `json:"issuer"`
	Cohort   string `json:"cohort"`
	Sequence int64  `json:"sequence"`
}

// Policy is a trust policy whose signature, version and dates were checked. Only [OpenPolicy]
// makes one.
type Policy struct {
	doc       TrustPolicy
	digest    string   // of the envelope file
	catalogue string   // digest
	roots     []string // SPKI digests of its signers, sorted
	keys      map[string]policyKey
}

type policyKey struct {
	PolicyKey
	key PublicKey
}

// Document returns a copy of what the root signed.
func (p *Policy) Document() TrustPolicy { return p.doc }

// Digest is the digest of the policy's envelope file, which pins name.
func (p *Policy) Digest() string { return p.digest }

// CatalogueDigest is the digest of the catalogue that the policy demands.
func (p *Policy) CatalogueDigest() string { return p.catalogue }

// Expires is when the policy ends.
func (p *Policy) Expires() time.Time { t, _ := p.doc.Expires.Time(); return t }

// OpenPolicy verifies a policy file against root keys and the rollback memory. It does not
// change the memory; [Memory.SeePolicy] does. Every signature must be one of roots'. When the memory
// knows who signed the policy before, one of those must have signed this one too: a new root follows
// an old one through a policy that both have signed, and not by a change of configuration alone.
// Errors are *Denied of step 0.
func OpenPolicy(data []byte, roots []PublicKey, mem *Memory, now time.Time) (*Policy, error) {
	if len(data) == 0 || len(roots) == 0 || mem == nil {
		return nil, deny(ReasonPolicyMissing, "%d bytes of policy, %d root keys", len(data), len(roots))
	}
	payload, signers, err := openRooted(data, roots)
	switch ReasonOf(err) {
	case "":
	case ReasonKeyUnknown, ReasonSignature, ReasonSignatureCount:
		return nil, recode(err, ReasonPolicySignature)
	default:
		return nil, recode(err, ReasonPolicyInvalid)
	}
	p := &Policy{digest: Digest(data), roots: signers, keys: map[string]policyKey{}}
	if err := strictjson.Unmarshal(payload, &p.doc, payloadLimits); err != nil {
		return nil, deny(ReasonPolicyInvalid, "%v", err)
	}
	if err := p.check(); err != nil {
		return nil, recode(err, ReasonPolicyInvalid)
	}
	if !now.Before(p.Expires()) {
		return nil, deny(ReasonPolicyExpired, "at %s", p.doc.Expires)
	}
	if err := mem.checkPolicy(p); err != nil {
		return nil, err
	}
	return p, nil
}

// CheckPolicy says whether p may be signed: everything that [OpenPolicy] would refuse but
// dates and signatures.
func CheckPolicy(p TrustPolicy) error {
	return recode((&Policy{doc: p, keys: map[string]policyKey{}}).check(), ReasonPolicyInvalid)
}

func (p *Policy) check() error {
	d := p.doc
	c := &checker{}
	c.want(d.SchemaVersion == SchemaVersion, "schemaVersion")
	c.want(d.Version > 0, "version")
	c.time(d.Expires, "expires")
	c.want(len(d.Keys) > 0 && len(d.Keys) <= 256, "keys")
	c.want(len(d.Thresholds) > 0, "thresholds")
	for role, n := range d.Thresholds {
		c.want(evidenceRole(role) && n >= 1 && n <= 16, "thresholds")
	}
	c.want(d.MaxAgeSeconds > 0 && d.MaxAgeSeconds <= maxSeconds && d.MaxValiditySeconds > 0 && d.MaxValiditySeconds <= maxSeconds, "maxAgeSeconds, maxValiditySeconds")
	c.want(d.ClockSkewSeconds >= 0 && d.ClockSkewSeconds <= 300, "clockSkewSeconds")
	c.want(len(d.Profiles) > 0 && sortedUnique(d.Profiles), "profiles")
	for _, name := range d.Profiles {
		_, ok := d.Catalogue.Profile(name)
		c.want(ok, "profiles: not in the catalogue")
	}
	c.want(d.MutationEvidence == MutationRequired || d.MutationEvidence == MutationRecorded, "mutationEvidence")
	for _, w := range d.Waivers {
		c.want(caseIDPattern.MatchString(w.Case) && w.Revision > 0 && wordPattern.MatchString(w.Reason), "waivers")
		c.text(w.Bug, "waivers.bug")
		c.time(w.Expires, "waivers.expires")
	}
	for _, m := range d.MinimumSequences {
		_, err := path.Match(m.Cohort, "")
		c.want(m.Issuer != "" && m.Sequence > 0 && err == nil, "minimumSequences")
	}
	for _, x := range d.DeniedDigests {
		c.digest(x, "deniedDigests")
	}
	c.capabilities(d.RequiredCapabilities, "requiredCapabilities")
	c.fleet(d)
	c.log(d.Log)
	c.want(len(d.Expression) <= MaxExpression && utf8.ValidString(d.Expression), "expression")
	var err error
	if p.catalogue, err = d.Catalogue.Digest(); err != nil {
		c.want(false, err.Error())
	}
	for i, k := range d.Keys {
		c.want(i == 0 || d.Keys[i-1].SPKIDigest < k.SPKIDigest, "keys: order")
		key, err := ParsePublicKey(k.SPKI)
		c.want(err == nil, "keys.spki")
		c.want(key.Digest() == k.SPKIDigest && key.Algorithm() == k.Algorithm, "keys: digest or algorithm is not of its spki")
		c.want(evidenceRole(k.Role) || k.Role == RoleMutation || k.Role == RoleGate, "keys.role")
		c.text(k.Identity, "keys.identity")
		_, err = path.Match(k.Cohorts, "")
		c.want(k.Cohorts != "" && err == nil, "keys.cohorts")
		c.time(k.NotBefore, "keys.notBefore")
		c.time(k.NotAfter, "keys.notAfter")
		if k.RevokedAt != "" {
			c.time(k.RevokedAt, "keys.revokedAt")
		}
		p.keys[key.Hint()] = policyKey{PolicyKey: k, key: key}
	}
	return c.err
}

// capabilities refuses an empty demand, which a capability that is not there would meet.
func (c *checker) capabilities(demanded map[string]string, where string) {
	for name, value := range demanded {
		c.want(name != "" && value != "", where)
	}
}

func evidenceRole(r string) bool { return r == RoleCI || r == RoleRelease || r == RoleImplementer }

func matches(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return err == nil && ok
}

// usable checks role-independent bounds of a key. A revoked key says nothing any more,
// whenever it is revoked: the date of what it signed is only its own claim.
func (k policyKey) usable(cohort string, signedAt, now time.Time) error {
	if k.RevokedAt != "" {
		return deny(ReasonKeyRevoked, "key %s at %s", k.SPKIDigest, k.RevokedAt)
	}
	if !matches(k.Cohorts, cohort) {
		return deny(ReasonKeyScope, "key %s, cohort %s", k.SPKIDigest, cohort)
	}
	from, _ := k.NotBefore.Time()
	to, _ := k.NotAfter.Time()
	for _, t := range []time.Time{signedAt, now} {
		if t.Before(from) || t.After(to) {
			return deny(ReasonKeyTime, "key %s is valid from %s to %s", k.SPKIDigest, k.NotBefore, k.NotAfter)
		}
	}
	return nil
}

func (p *Policy) minimum(issuer, cohort string) int64 {
	var m int64
	for _, s := range p.doc.MinimumSequences {
		if s.Issuer == issuer && matches(s.Cohort, cohort) {
			m = max(m, s.Sequence)
		}
	}
	return m
}

// SignPolicy sorts p's keys, checks it and returns the bytes of the policy file. Several roots sign
// while one follows another, see [OpenPolicy].
func SignPolicy(p TrustPolicy, roots ...Signer) ([]byte, error) {
	p.Keys = slices.Clone(p.Keys)
	SortPolicyKeys(p.Keys)
	if err := CheckPolicy(p); err != nil {
		return nil, fmt.Errorf("sign policy: %w", err)
	}
	payload, err := strictjson.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("sign policy: %w", err)
	}
	return sealRooted(payload, roots)
}

// SortPolicyKeys puts keys into the order that the schema demands.
func SortPolicyKeys(keys []PolicyKey) {
	slices.SortFunc(keys, func(a, b PolicyKey) int { return strings.Compare(a.SPKIDigest, b.SPKIDigest) })
}
