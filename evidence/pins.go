// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Pins is a release decision as workers read it: what may start on which cohort. The file is a SLSA
// Verification Summary (VSA v1) in a DSSE envelope signed by a gate key of the trust policy; these
// members are its extension named [PinsExtension].
type Pins struct {
	Mode            string       `json:"mode"` // PinsProduction; a worker refuses everything else
	CatalogueDigest string       `json:"catalogueDigest"`
	PolicyVersion   int64        `json:"policyVersion"`
	Cohorts         []CohortPins `json:"cohorts"` // one per measured cohort, or per host where those are bound; sorted by id, then host
	// NotAfter is the earliest end of Cohorts: an image is released while every required cohort has
	// live evidence, so the release ends on all of them when it ends on one.
	NotAfter Timestamp `json:"notAfter"`
}

// CohortPins is what may start on one measured cohort. Binaries, launch profile and worker
// configuration are one set, tested together.
type CohortPins struct {
	Name          string      `json:"name"` // in the policy's fleet; "" without one
	Cohort        string      `json:"cohort"`
	Host          string      `json:"host,omitempty"` // where the policy binds hosts
	Profiles      []string    `json:"profiles"`       // that the evidence was judged by
	Images        []PinnedImg `json:"images"`
	Binaries      []Binary    `json:"binaries"` // one per role, sorted by role
	LaunchProfile string      `json:"launchProfile"`
	WorkerConfig  string      `json:"workerConfig"`
	Evidence      []string    `json:"evidence"` // digests of the evidence files, sorted
	NotAfter      Timestamp   `json:"notAfter"`
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
	fleetURI       = "https://hallmark-sandbox.github.io/fleet/" // and the policy's digest
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

// MakePins turns decisions under one policy into pins and their signed file, for the images of
// [DecideFleet]. It refuses decisions that are not admitted or were not made at audit depth, an image that
// is not released, and bundles of one cohort that differ in binaries, launch profile or worker
// configuration: a workload is pinned only with the helpers of its own statement.
func MakePins(policy *Policy, decisions []Decision, s Signer, now time.Time, images ...string) (Pins, []byte, error) {
	if len(decisions) == 0 {
		return Pins{}, nil, deny(ReasonPinsEvidence, "no evidence")
	}
	for i, d := range decisions {
		if !d.audited {
			return Pins{}, nil, deny(ReasonPinsEvidence, "bundle %d was not audited", i+1)
		}
		for step, demanded := range map[int]bool{StepLog: policy.doc.Log != nil, StepExpression: policy.doc.Expression != ""} {
			if demanded && d.Steps[step-1].State != StepHeld {
				return Pins{}, nil, deny(ReasonPinsEvidence, "step %d of bundle %d is %s", step, i+1, d.Steps[step-1].State)
			}
		}
	}
	pins, err := derivePins(policy, decisions)
	if err != nil {
		return Pins{}, nil, err
	}
	release := DecideFleet(policy, decisions, images)
	if b, blocked := release.Blocks(); blocked {
		return Pins{}, nil, deny(b.Reason, "%s", b.where())
	}
	pins.keep(release)
	file, err := SealPins(policy, pins, s, now)
	return pins, file, err
}

// SealPins signs pins as they are, with a gate key of the policy. It looks at no evidence:
// [MakePins] does, and whoever reads pins does it again.
func SealPins(policy *Policy, pins Pins, s Signer, now time.Time) ([]byte, error) {
	k, ok := policy.keys[s.PublicKey().Hint()]
	if !ok || k.Role != RoleGate {
		return nil, deny(ReasonPinsSignature, "key %s is no gate key of the policy", s.PublicKey().Digest())
	}
	if err := k.signsPins(pins, now, now); err != nil {
		return nil, err
	}
	payload, err := policy.summary(pins, At(now))
	if err != nil {
		return nil, fmt.Errorf("pins: %w", err)
	}
	return SealEnvelope(InTotoType, payload, s)
}

// summary is the payload of a pins file: all of it follows from the pins, the policy and when they were made.
func (p *Policy) summary(pins Pins, made Timestamp) ([]byte, error) {
	st := vsaStatement{Type: StatementType, PredicateType: VSAPredicateType, Subject: pins.subjects()}
	v := &st.Predicate
	v.Verifier.ID = verifierID
	v.TimeVerified = made
	v.ResourceURI = p.resource(pins)
	v.Policy = resourceDescriptor{URI: policyURI, Digest: DigestSet{SHA256: strings.TrimPrefix(p.digest, digestPrefix)}}
	for _, e := range pins.evidence() {
		v.InputAttestations = append(v.InputAttestations, resourceDescriptor{
			URI: evidenceURI, Digest: DigestSet{SHA256: strings.TrimPrefix(e, digestPrefix)},
		})
	}
	v.VerificationResult = "PASSED"
	v.VerifiedLevels = pins.levels()
	v.SLSAVersion = "1.1"
	v.Pins = pins
	return strictjson.Marshal(st)
}

// levels are the profiles that hold on every cohort: what a reader of the whole summary may rely on.
func (p Pins) levels() []string {
	out := []string{}
	for i, c := range p.Cohorts {
		if i == 0 {
			out = append(out, c.Profiles...)
		}
		out = slices.DeleteFunc(out, func(name string) bool { return !slices.Contains(c.Profiles, name) })
	}
	for i, name := range out {
		out[i] = verifiedLevel + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	}
	return out
}

func (p *Policy) resource(pins Pins) string {
	if len(p.doc.Fleet) == 0 && len(pins.Cohorts) > 0 {
		return resourceURI + pins.Cohorts[0].Cohort
	}
	return fleetURI + p.digest
}

// signsPins says whether a gate key may speak for every cohort of pins.
func (k policyKey) signsPins(pins Pins, made, now time.Time) error {
	for _, c := range pins.Cohorts {
		if err := k.usable(c.Cohort, made, now); err != nil {
			return recode(err, ReasonPinsSignature)
		}
	}
	return nil
}

// evidence is every evidence file behind p, sorted.
func (p Pins) evidence() []string {
	var out []string
	for _, c := range p.Cohorts {
		out = append(out, c.Evidence...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// subjects are the pinned digests of all cohorts, each once: a digest that several cohorts name has
// the name that the first gives it.
func (p Pins) subjects() []Subject {
	var images []Image
	var binaries []Binary
	seen := map[string]bool{}
	for _, c := range p.Cohorts {
		for _, m := range c.Images {
			if !seen[m.ConfigDigest] {
				images = append(images, Image{m.Name, m.Role, m.ConfigDigest, m.ManifestDigest})
			}
			seen[m.ConfigDigest] = true
		}
		for _, b := range c.Binaries {
			if !seen[b.Digest] {
				binaries = append(binaries, b)
			}
			seen[b.Digest] = true
		}
	}
	return Subjects(images, binaries)
}

// keep leaves out workloads that are not released. Helper images stay with them.
func (p *Pins) keep(f Fleet) {
	for i := range p.Cohorts {
		p.Cohorts[i].Images = slices.DeleteFunc(p.Cohorts[i].Images, func(m PinnedImg) bool {
			return m.Role == ImageWorkload && !slices.ContainsFunc(f.Images, func(r ImageRelease) bool { return r.ConfigDigest == m.ConfigDigest && r.Released })
		})
	}
}

// derivePins is what admitted decisions give: the gate signs it, the worker compares it.
func derivePins(policy *Policy, ds []Decision) (Pins, error) {
	pins := Pins{Mode: PinsProduction, CatalogueDigest: policy.catalogue, PolicyVersion: policy.doc.Version}
	end := policy.Expires()
	for i, d := range ds {
		if !d.Admitted || d.statement == nil || len(d.Evidence) == 0 {
			return Pins{}, deny(ReasonPinsEvidence, "bundle %d was not admitted", i+1)
		}
	}
	// Gate and worker may be given the bundles in another order.
	ds = slices.Clone(ds)
	slices.SortFunc(ds, func(a, b Decision) int { return strings.Compare(a.Evidence[0], b.Evidence[0]) })
	for _, d := range ds {
		p := d.statement.Predicate
		one := CohortPins{
			Name: d.Place, Cohort: p.Cohort.ID, Host: d.host, Profiles: d.profiles, Binaries: p.Binaries,
			LaunchProfile: p.LaunchProfile.Digest, WorkerConfig: p.WorkerConfig.Digest, NotAfter: At(endOf(policy, d)),
		}
		at := slices.IndexFunc(pins.Cohorts, func(c CohortPins) bool { return c.compare(one) == 0 })
		if at < 0 {
			at = len(pins.Cohorts)
			pins.Cohorts = append(pins.Cohorts, one)
		}
		c := &pins.Cohorts[at]
		if !slices.Equal(one.Binaries, c.Binaries) || one.LaunchProfile != c.LaunchProfile || one.WorkerConfig != c.WorkerConfig ||
			len(policy.doc.Fleet) == 0 && one.Cohort != pins.Cohorts[0].Cohort {
			return Pins{}, deny(ReasonSplit, "evidence %s", d.Evidence[0])
		}
		for _, m := range p.Images {
			same := slices.IndexFunc(c.Images, func(o PinnedImg) bool { return o.ConfigDigest == m.ConfigDigest })
			switch {
			case same < 0:
				c.Images = append(c.Images, PinnedImg{m.Name, m.Role, m.ConfigDigest, m.ManifestDigest, d.Evidence[0]})
			case c.Images[same].Role != m.Role:
				// Else the order of the bundles would say whether a helper may be started as a workload.
				return Pins{}, deny(ReasonSplit, "evidence %s, image %s is a %s and a %s", d.Evidence[0], m.ConfigDigest, c.Images[same].Role, m.Role)
			}
		}
		c.Evidence = append(c.Evidence, d.Evidence...)
		// As written, in whole seconds: two of these times compare as their texts do.
		c.NotAfter = min(c.NotAfter, one.NotAfter)
		if t, _ := c.NotAfter.Time(); t.Before(end) {
			end = t
		}
	}
	for i := range pins.Cohorts {
		c := &pins.Cohorts[i]
		slices.SortFunc(c.Images, func(a, b PinnedImg) int { return strings.Compare(a.ConfigDigest, b.ConfigDigest) })
		slices.Sort(c.Evidence)
		c.Evidence = slices.Compact(c.Evidence)
	}
	slices.SortFunc(pins.Cohorts, CohortPins.compare)
	pins.NotAfter = At(end)
	return pins, nil
}

// compare orders parts of a release by what they are for.
func (c CohortPins) compare(o CohortPins) int {
	return cmp.Or(strings.Compare(c.Cohort, o.Cohort), strings.Compare(c.Host, o.Host))
}

// VerifyPins checks a pins file against the policy: format, gate key, policy digest, mode, dates, and
// that the release is whole: every required cohort is there with every released image. It does not look
// at the evidence; [Admit] does, for its own cohort. Errors are *Denied of step 20.
func VerifyPins(data []byte, policy *Policy, now time.Time) (Pins, error) {
	pins, _, err := verifyPins(data, policy, now)
	return pins, err
}

// verifyPins returns also when the pins were made.
func verifyPins(data []byte, policy *Policy, now time.Time) (Pins, Timestamp, error) {
	var key policyKey
	payload, _, err := openEnvelope(data, InTotoType, func(hint string) (PublicKey, bool) {
		k, ok := policy.keys[hint]
		key = k
		return k.key, ok && k.Role == RoleGate
	})
	switch ReasonOf(err) {
	case "":
	case ReasonKeyUnknown, ReasonSignature, ReasonSignatureCount:
		return Pins{}, "", recode(err, ReasonPinsSignature)
	default:
		return Pins{}, "", recode(err, ReasonPinsInvalid)
	}
	var st vsaStatement
	if err := strictjson.Unmarshal(payload, &st, payloadLimits); err != nil {
		return Pins{}, "", deny(ReasonPinsInvalid, "%v", err)
	}
	v, pins := st.Predicate, st.Predicate.Pins
	made, ok := v.TimeVerified.Time()
	if st.Type != StatementType || st.PredicateType != VSAPredicateType || v.VerificationResult != "PASSED" || !ok {
		return Pins{}, "", deny(ReasonPinsInvalid, "type, result or time")
	}
	if pins.Mode != PinsProduction {
		return Pins{}, "", deny(ReasonPinsMode, "mode %q", pins.Mode)
	}
	if err := key.signsPins(pins, made, now); err != nil {
		return Pins{}, "", err
	}
	if made.After(now.Add(time.Duration(policy.doc.ClockSkewSeconds) * time.Second)) {
		return Pins{}, "", deny(ReasonPinsInvalid, "made at %s, which is to come", v.TimeVerified)
	}
	if digestPrefix+v.Policy.Digest.SHA256 != policy.Digest() {
		return Pins{}, "", deny(ReasonPinsPolicy, "made under sha256:%s, now %s", v.Policy.Digest.SHA256, policy.Digest())
	}
	// Other readers of the summary know nothing of its extension: what they rely on must say the same.
	if again, err := policy.summary(pins, v.TimeVerified); err != nil || !bytes.Equal(again, payload) {
		return Pins{}, "", deny(ReasonPinsInvalid, "the summary is not the one that the pins give")
	}
	return pins, v.TimeVerified, pins.whole(policy)
}

// whole checks that pins are a release by the policy's fleet, as far as that can be seen without the
// evidence of other cohorts.
func (p Pins) whole(policy *Policy) error {
	if len(p.Cohorts) == 0 || len(policy.doc.Fleet) == 0 && p.Cohorts[0].Cohort != p.Cohorts[len(p.Cohorts)-1].Cohort || p.CatalogueDigest != policy.catalogue || p.PolicyVersion != policy.doc.Version {
		return deny(ReasonPinsInvalid, "%d cohorts, catalogue %s, policy version %d", len(p.Cohorts), p.CatalogueDigest, p.PolicyVersion)
	}
	places := policy.doc.Fleet
	if len(places) == 0 {
		places = []FleetCohort{{Profiles: policy.doc.Profiles}}
	}
	for i, c := range p.Cohorts {
		f := slices.IndexFunc(places, func(f FleetCohort) bool { return f.Name == c.Name })
		if f < 0 || !slices.Equal(places[f].Profiles, c.Profiles) || i > 0 && p.Cohorts[i-1].compare(c) >= 0 || policy.doc.BindHosts != ValidDigest(c.Host) || !policy.doc.BindHosts && c.Host != "" {
			return deny(ReasonPinsInvalid, "cohort %q %s, judged by %q", c.Name, c.Cohort, c.Profiles)
		}
		if _, ok := c.NotAfter.Time(); !ok || c.NotAfter < p.NotAfter {
			return deny(ReasonPinsInvalid, "cohort %q ends at %s, before the release", c.Name, c.NotAfter)
		}
	}
	if _, ok := p.NotAfter.Time(); !ok {
		return deny(ReasonPinsInvalid, "the release ends at %q", p.NotAfter)
	}
	for _, f := range places {
		for _, c := range p.Cohorts {
			for _, m := range c.Images {
				if m.Role == ImageWorkload && !p.pinned(f.Name, m.ConfigDigest) {
					return deny(ReasonPinsInvalid, "image %s is not released: cohort %q is missing", m.ConfigDigest, f.Name)
				}
			}
		}
	}
	return nil
}

// pinned says whether some measured cohort of that name has the workload image.
func (p Pins) pinned(place, configDigest string) bool {
	return slices.ContainsFunc(p.Cohorts, func(c CohortPins) bool {
		return c.Name == place && slices.ContainsFunc(c.Images, func(m PinnedImg) bool { return m.Role == ImageWorkload && m.ConfigDigest == configDigest })
	})
}
