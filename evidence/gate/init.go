// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// Names of the files that [Init] makes and the gate command looks for.
const (
	RootKeyFile     = "root.key"
	RootPublicFile  = "root.pub"
	EvidenceKeyFile = "evidence.key"
	GateKeyFile     = "gate.key"
	TrustFile       = "trust.json"
	StateDir        = "state"
	PinsFile        = "pins.json"
)

// KeyLead is how long before its making a new key is valid: clocks differ, and a run may have ended.
const KeyLead = time.Minute

// InitConfig describes a first trust policy.
type InitConfig struct {
	Dir       string // gets the three keys, their public halves and trust.json; replaces nothing
	Identity  string // issuer.id of the evidence key
	Role      string // of the evidence key: ci, release or implementer
	Profiles  []string
	Catalogue evidence.Catalogue
	Mutation  string // evidence.MutationRequired or evidence.MutationRecorded
	// MutationKeys may sign mutation statements, under the same identity.
	MutationKeys []evidence.PublicKey
	Waivers      []evidence.Waiver
	Fleet        []evidence.FleetCohort // that a release needs; none means one cohort at a time
	Log          *evidence.PolicyLog    // that must hold all evidence; nil for none
	BindHosts    bool                   // evidence counts on the host that it was made on only
	Expression   string                 // CEL that may only deny; "" for none
	Lifetime     time.Duration          // of policy and keys; at most a year
	Now          time.Time
}

// Init makes a root, an evidence and a gate key (Ed25519) and a policy, version 1, that lets
// the evidence key speak for its identity on every cohort and the gate key sign pins. Move
// root.key away afterwards: it is needed only to sign the next policy.
func Init(c InitConfig) (evidence.TrustPolicy, error) {
	if c.Lifetime <= 0 || c.Lifetime > 366*24*time.Hour || c.Identity == "" {
		return evidence.TrustPolicy{}, fmt.Errorf("init trust: identity %q, lifetime %s", c.Identity, c.Lifetime)
	}
	if err := c.Catalogue.Check(); err != nil {
		return evidence.TrustPolicy{}, fmt.Errorf("init trust: %w", err)
	}
	for _, name := range c.Profiles {
		if _, ok := c.Catalogue.Profile(name); !ok {
			return evidence.TrustPolicy{}, fmt.Errorf("init trust: profiles: %q is not in the catalogue", name)
		}
	}
	if c.Expression != "" {
		if _, err := CompileExpression(c.Expression); err != nil {
			return evidence.TrustPolicy{}, fmt.Errorf("init trust: %w", err)
		}
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return evidence.TrustPolicy{}, fmt.Errorf("init trust: %w", err)
	}
	keys := map[string]*signing.Signer{}
	for _, name := range []string{RootKeyFile, EvidenceKeyFile, GateKeyFile} {
		path := filepath.Join(c.Dir, name)
		s, err := signing.Generate(path, PublicPath(path), evidence.Ed25519)
		if err != nil {
			return evidence.TrustPolicy{}, err
		}
		keys[name] = s
	}
	end := evidence.At(c.Now.Add(c.Lifetime))
	entry := func(key evidence.PublicKey, role string) evidence.PolicyKey {
		return evidence.PolicyKey{
			SPKIDigest: key.Digest(), SPKI: key.SPKI(), Algorithm: key.Algorithm(),
			Role: role, Identity: c.Identity, Cohorts: "*", NotBefore: evidence.At(c.Now.Add(-KeyLead)), NotAfter: end,
		}
	}
	p := evidence.TrustPolicy{
		SchemaVersion: evidence.SchemaVersion, Version: 1, Expires: end,
		Keys:       []evidence.PolicyKey{entry(keys[EvidenceKeyFile].PublicKey(), c.Role), entry(keys[GateKeyFile].PublicKey(), evidence.RoleGate)},
		Thresholds: map[string]int64{c.Role: 1},
		// A month is the longest time for which a kernel or an engine is likely to stay as it was.
		MaxAgeSeconds: 30 * 86400, MaxValiditySeconds: 30 * 86400, ClockSkewSeconds: 60,
		Profiles: c.Profiles, Catalogue: c.Catalogue, MutationEvidence: c.Mutation, Waivers: c.Waivers,
		Fleet: c.Fleet, Log: c.Log, BindHosts: c.BindHosts, Expression: c.Expression,
	}
	for _, key := range c.MutationKeys {
		p.Keys = append(p.Keys, entry(key, evidence.RoleMutation))
	}
	evidence.SortPolicyKeys(p.Keys)
	file, err := evidence.SignPolicy(p, keys[RootKeyFile])
	if err != nil {
		return p, err
	}
	if err := evidence.WriteDurable(filepath.Join(c.Dir, TrustFile), file, 0o644); err != nil {
		return p, fmt.Errorf("init trust: %w", err)
	}
	return p, nil
}

// PublicPath is where the public half of a private key file goes: ".key" becomes ".pub".
func PublicPath(private string) string {
	if ext := filepath.Ext(private); ext == ".key" {
		return private[:len(private)-len(ext)] + ".pub"
	}
	return private + ".pub"
}
