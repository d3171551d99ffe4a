// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Pins is what a worker may start, as the gate decided. The file is a SLSA Verification
// Summary (VSA v1) in a DSSE envelope signed by a gate key of the trust policy; these members
// are its extension named [PinsExtension].
type Pins struct {
	Cohort          string      `json:"cohort"`
	Mode            string      `json:"mode"` // PinsProduction; a worker refuses everything else
	Images          []PinnedImg `json:"images"`
	Binaries        []Binary    `json:"binaries"` // one per role, sorted by role
	LaunchProfile   string      `json:"launchProfile"`
	WorkerConfig    string      `json:"workerConfig"`
	CatalogueDigest string      `json:"catalogueDigest"`
	PolicyVersion   int64       `json:"policyVersion"`
	NotAfter        Timestamp   `json:"notAfter"`
}

// PinnedImg is an admitted image and the evidence file that says so.
type PinnedImg struct {
	Name           string `json:"name"`
	Role           string `json:"role"`
	ConfigDigest   string `json:"configDigest"`
	ManifestDigest string `json:"manifestDigest"`
	Evidence       string `json:"evidence"` // digest of evidence.sigstore.json
}

// Names of the pins' format.
const (
	PinsProduction = "production"
	PinsExtension  = "https://hallmark-sandbox.github.io/attestation/pins/v1"
	verifierID     = "https://hallmark-sandbox.github.io/gate"
	resourceURI    = "https://hallmark-sandbox.github.io/cohort/"
	policyURI      = "https://hallmark-sandbox.github.io/trust-policy"
	evidenceURI    = "https://hallmark-sandbox.github.io/evidence"
	verifiedLevel  = "HALLMARK_"
)

// vsa is SLSA Verification Summary v1, https://slsa.dev/spec/v1.1/verification_summary. Its
// rules allow extension members named by a URI.
type vsa struct {
	Verifier struct {
		ID string `json:"id"`
	} `json:"verifier"`
	TimeVerified       Timestamp            `json:"timeVerified"`
	ResourceURI        string               `json:"resourceUri"`
	Policy             resourceDescriptor   `json:"policy"`
	InputAttestations  []resourceDescriptor `json:"inputAttestations"`
	VerificationResult string               `json:"verificationResult"`
	VerifiedLevels     []string             `json:"verifiedLevels"`
	SLSAVersion        string               `json:"slsaVersion"`
	Pins               Pins                 `json:"https://hallmark-sandbox.github.io/attestation/pins/v1"`
}

type vsaStatement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     vsa       `json:"predicate"`
}

// MakePins turns admitted decisions under one policy into pins and their signed file. It
// refuses decisions that are not admitted or were not made at audit depth, and bundles that differ in cohort, binaries, launch profile or worker
// configuration: a workload is pinned only with the helpers of its own statement.
func MakePins(policy *Policy, decisions []Decision, s Signer, now time.Time) (Pins, []byte, error) {
	if len(decisions) == 0 {
		return Pins{}, nil, deny(ReasonPinsEvidence, "no evidence")
	}
	for i, d := range decisions {
		if !d.audited {
			return Pins{}, nil, deny(ReasonPinsEvidence, "bundle %d was not audited", i+1)
		}
	}
	pins, err := derivePins(policy, decisions)
	if err != nil {
		return Pins{}, nil, err
	}
	k, ok := policy.keys[s.PublicKey().Hint()]
	if !ok || k.Role != RoleGate {
		return Pins{}, nil, deny(ReasonPinsSignature, "key %s is no gate key of the policy", s.PublicKey().Digest())
	}
	if err := k.usable(pins.Cohort, now, now); err != nil {
		return Pins{}, nil, recode(err, ReasonPinsSignature)
	}
	st := vsaStatement{Type: StatementType, PredicateType: VSAPredicateType, Subject: pins.subjects()}
	v := &st.Predicate
	v.Verifier.ID = verifierID
	v.TimeVerified = At(now)
	v.ResourceURI = resourceURI + pins.Cohort
	v.Policy = resourceDescriptor{URI: policyURI, Digest: DigestSet{SHA256: strings.TrimPrefix(policy.Digest(), digestPrefix)}}
	for _, e := range evidenceDigests(decisions) {
		v.InputAttestations = append(v.InputAttestations, resourceDescriptor{
			URI: evidenceURI, Digest: DigestSet{SHA256: strings.TrimPrefix(e, digestPrefix)},
		})
	}
	v.VerificationResult = "PASSED"
	v.VerifiedLevels = levels(policy)
	v.SLSAVersion = "1.1"
	v.Pins = pins
	payload, err := strictjson.Marshal(st)
	if err != nil {
		return Pins{}, nil, fmt.Errorf("pins: %w", err)
	}
	file, err := SealEnvelope(InTotoType, payload, s)
	return pins, file, err
}

func levels(policy *Policy) []string {
	var out []string
	for _, p := range policy.doc.Profiles {
		out = append(out, verifiedLevel+strings.ToUpper(strings.ReplaceAll(p, "-", "_")))
	}
	return out
}

func evidenceDigests(ds []Decision) []string {
	var out []string
	for _, d := range ds {
		out = append(out, d.Evidence...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (p Pins) subjects() []Subject {
	var images []Image
	for _, m := range p.Images {
		images = append(images, Image{m.Name, m.Role, m.ConfigDigest, m.ManifestDigest})
	}
	return Subjects(images, p.Binaries)
}

// derivePins is what admitted decisions give: the gate signs it, the worker compares it.
func derivePins(policy *Policy, ds []Decision) (Pins, error) {
	var pins Pins
	end := policy.Expires()
	earlier := func(t time.Time) {
		if t.Before(end) {
			end = t
		}
	}
	for i, d := range ds {
		if !d.Admitted || d.statement == nil || len(d.Evidence) == 0 {
			return Pins{}, deny(ReasonPinsEvidence, "bundle %d was not admitted", i+1)
		}
		p := d.statement.Predicate
		one := Pins{
			Cohort: p.Cohort.ID, Mode: PinsProduction, Binaries: p.Binaries,
			LaunchProfile: p.LaunchProfile.Digest, WorkerConfig: p.WorkerConfig.Digest,
			CatalogueDigest: policy.catalogue, PolicyVersion: policy.doc.Version,
		}
		if i == 0 {
			pins = one
		}
		if one.Cohort != pins.Cohort || !slices.Equal(one.Binaries, pins.Binaries) ||
			one.LaunchProfile != pins.LaunchProfile || one.WorkerConfig != pins.WorkerConfig {
			return Pins{}, deny(ReasonSplit, "bundle %d", i+1)
		}
		for _, m := range p.Images {
			if slices.ContainsFunc(pins.Images, func(o PinnedImg) bool { return o.ConfigDigest == m.ConfigDigest }) {
				continue
			}
			pins.Images = append(pins.Images, PinnedImg{m.Name, m.Role, m.ConfigDigest, m.ManifestDigest, d.Evidence[0]})
		}
		to, _ := p.Validity.NotAfter.Time()
		finished, _ := p.Run.FinishedAt.Time()
		earlier(to)
		earlier(finished.Add(time.Duration(policy.doc.MaxAgeSeconds) * time.Second))
		for _, w := range d.Waivers {
			wt, _ := w.Expires.Time()
			earlier(wt) // without the waiver there would be no admission
		}
		for _, s := range d.keys {
			for _, k := range policy.doc.Keys {
				if k.SPKIDigest == s {
					kt, _ := k.NotAfter.Time()
					earlier(kt)
				}
			}
		}
	}
	slices.SortFunc(pins.Images, func(a, b PinnedImg) int { return strings.Compare(a.ConfigDigest, b.ConfigDigest) })
	pins.NotAfter = At(end)
	return pins, nil
}

// VerifyPins checks a pins file against the policy: format, gate key, policy digest, mode and
// dates. It does not look at the evidence; [Admit] does. Errors are *Denied of step 20.
func VerifyPins(data []byte, policy *Policy, now time.Time) (Pins, []string, error) {
	var key policyKey
	payload, _, err := openEnvelope(data, InTotoType, func(hint string) (PublicKey, bool) {
		k, ok := policy.keys[hint]
		key = k
		return k.key, ok && k.Role == RoleGate
	})
	switch ReasonOf(err) {
	case "":
	case ReasonKeyUnknown, ReasonSignature, ReasonSignatureCount:
		return Pins{}, nil, recode(err, ReasonPinsSignature)
	default:
		return Pins{}, nil, recode(err, ReasonPinsInvalid)
	}
	var st vsaStatement
	if err := strictjson.Unmarshal(payload, &st, payloadLimits); err != nil {
		return Pins{}, nil, deny(ReasonPinsInvalid, "%v", err)
	}
	v, pins := st.Predicate, st.Predicate.Pins
	made, ok := v.TimeVerified.Time()
	if st.Type != StatementType || st.PredicateType != VSAPredicateType || v.Verifier.ID != verifierID ||
		v.VerificationResult != "PASSED" || !ok || v.ResourceURI != resourceURI+pins.Cohort {
		return Pins{}, nil, deny(ReasonPinsInvalid, "type, verifier, resource or result")
	}
	if !slices.EqualFunc(st.Subject, pins.subjects(), sameSubject) {
		return Pins{}, nil, deny(ReasonPinsInvalid, "subjects are not the pinned digests")
	}
	if pins.Mode != PinsProduction {
		return Pins{}, nil, deny(ReasonPinsMode, "mode %q", pins.Mode)
	}
	if err := key.usable(pins.Cohort, made, now); err != nil {
		return Pins{}, nil, recode(err, ReasonPinsSignature)
	}
	if digestPrefix+v.Policy.Digest.SHA256 != policy.Digest() {
		return Pins{}, nil, deny(ReasonPinsPolicy, "made under sha256:%s, now %s", v.Policy.Digest.SHA256, policy.Digest())
	}
	var inputs []string
	for _, in := range v.InputAttestations {
		inputs = append(inputs, digestPrefix+in.Digest.SHA256)
	}
	return pins, inputs, nil
}

func sameSubject(a, b Subject) bool {
	return a.Name == b.Name && a.Digest == b.Digest && len(a.Annotations) == len(b.Annotations) &&
		a.Annotations["manifestDigest"] == b.Annotations["manifestDigest"]
}
