// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Question is what a bundle is asked.
type Question struct {
	Policy *Policy
	Memory *Memory
	// Catalogue is the verifier's own. A worker leaves it nil and judges by the policy's, which
	// the gate compared with its own.
	Catalogue *Catalogue
	Cohort    string   // that must be; "" leaves it to the keys' scope
	Host      string   // that must be; "" leaves it open, unless a worker asks and the policy binds hosts
	Nonce     string   // that the run must have been asked with; "" leaves it open
	Want      []string // digests that must be subjects of this one statement
	Now       time.Time
	Depth     Depth
}

// Decision is the answer about one bundle.
type Decision struct {
	Admitted bool             `json:"admitted"`
	Reason   Reason           `json:"reason"` // "" when admitted
	Step     int              `json:"step"`
	Detail   string           `json:"detail"`
	Verdict  Outcome          `json:"verdict"` // recomputed; "" when it did not come to that
	Cohort   string           `json:"cohort"`
	Place    string           `json:"fleetCohort"` // that the policy's fleet has for it; "" without one
	Subjects []DecidedSubject `json:"subjects"`
	Findings []Finding        `json:"findings"`
	Waivers  []Waiver         `json:"waivers"` // of the policy, those that excused a case
	Steps    []StepState      `json:"steps"`   // all, in their order
	Payload  string           `json:"payloadDigest"`
	Evidence []string         `json:"evidenceDigests"` // of the evidence files

	statement *Statement
	keys      []string // SPKI digests of the signers
	profiles  []string // that it was judged by
	placed    bool     // Place says where it belongs
	nonce     string   // that it was asked for with
	host      string   // that it was made on, where the policy binds hosts
	now       time.Time
	audited   bool
}

// DecidedSubject is a subject with its role.
type DecidedSubject struct {
	Name   string `json:"name"`
	Role   string `json:"role"`
	Digest string `json:"digest"`
}

// Statement returns what was signed, once signature and schema held; else nil.
func (d Decision) Statement() *Statement { return d.statement }

// Decide runs the gate's checks in their order; the first failure decides. It changes neither
// bundle nor memory; [Memory.See] takes the decision in.
func Decide(q Question, b *Bundle) Decision {
	x := &examination{q: q, b: b}
	return x.decision(x.all())
}

// DecideDir reads a bundle directory and decides on it. The error is of the reading; a bundle
// that cannot be admitted as it lies there is a decision.
func DecideDir(q Question, dir string) (Decision, error) {
	b, err := ReadBundle(dir, q.Depth)
	if ReasonOf(err) != "" {
		return DenyUnread(q, err), nil
	}
	if err != nil {
		return Decision{}, err
	}
	return Decide(q, b), nil
}

// DenyUnread is the decision on a bundle that cannot be admitted as it lies there; err, of the reading,
// matches *Denied.
func DenyUnread(q Question, err error) Decision { return (&examination{q: q}).decision(err) }

// examination is one bundle on its way through the steps.
type examination struct {
	q Question
	b *Bundle

	signers   []signer
	payload   []byte
	statement Statement
	held      []int       // steps that are done
	decoded   bool        // statement may be shown
	place     FleetCohort // from step 10 on
	catalogue Catalogue   // that rows are judged by, from step 11 on
	judgement *Judgement  // by the policy
}

type signer struct {
	file string
	key  policyKey
}

func (x *examination) decision(err error) Decision {
	d := Decision{
		Admitted: err == nil, Reason: ReasonOf(err), audited: x.q.Depth == AuditDepth, now: x.q.Now,
		Steps: x.states(ReasonOf(err)), Subjects: []DecidedSubject{}, Findings: []Finding{}, Waivers: []Waiver{}, Evidence: []string{},
	}
	if err != nil {
		d.Step = d.Reason.Step()
		d.Detail = err.Error()
	}
	if x.decoded {
		p := x.statement.Predicate
		d.statement, d.Cohort, d.Payload, d.nonce = &x.statement, p.Cohort.ID, Digest(x.payload), x.q.Nonce
		d.host = x.boundHost()
		// What was denied before step 10 belongs where its descriptor says, for who reads the decision.
		if place, err := x.q.Policy.place(p.Cohort.Descriptor); err == nil {
			d.Place, d.profiles, d.placed = place.Name, place.Profiles, true
		}
		for _, m := range p.Images {
			d.Subjects = append(d.Subjects, DecidedSubject{m.Name, m.Role, m.ConfigDigest})
		}
		for _, n := range p.Binaries {
			d.Subjects = append(d.Subjects, DecidedSubject{n.Name, n.Role, n.Digest})
		}
		for _, s := range x.signers {
			d.keys = append(d.keys, s.key.SPKIDigest)
			d.Evidence = append(d.Evidence, x.b.files[s.file].digest())
		}
	}
	if x.judgement != nil {
		d.Verdict, d.Findings = x.judgement.Verdict, x.judgement.Findings
		d.Waivers = append(d.Waivers, x.judgement.Waived...)
	}
	return d
}

func (x *examination) all() error {
	if x.q.Policy == nil || x.q.Memory == nil {
		return deny(ReasonPolicyMissing, "no policy or no memory")
	}
	for _, stage := range []struct {
		steps []int // that are done when it has not failed
		check func() error
	}{
		{[]int{1, 2, 3, 4, 5}, x.envelopes}, {nil, x.keys}, {[]int{7}, x.types}, {[]int{6, 8}, x.schema},
		{[]int{9}, x.subjects}, {[]int{10}, x.cohort}, {[]int{11}, x.complete}, {[]int{12}, x.hygiene}, {nil, x.summary},
		{nil, x.artifacts}, {[]int{13}, x.audit}, {[]int{14}, x.times}, {[]int{15}, x.history}, {[]int{16}, x.threshold},
	} {
		if err := stage.check(); err != nil {
			failed := ReasonOf(err).Step()
			for _, n := range stage.steps {
				if n < failed && failed <= 5 { // of the envelope's steps, each needs the one before
					x.held = append(x.held, n)
				}
			}
			return err
		}
		x.held = append(x.held, stage.steps...)
	}
	return nil
}

// envelopes is steps 1 to 5, file by file, and the payload comparison of step 16, which has to
// come before anything is read from a payload.
func (x *examination) envelopes() error {
	names := x.b.evidenceFiles()
	if !slices.Contains(names, evidenceFile) {
		return deny(ReasonFileGone, "%s", evidenceFile)
	}
	for i, name := range names {
		payload, key, err := x.open(x.b.files[name].data)
		if err != nil {
			return err
		}
		if i > 0 && !bytes.Equal(payload, x.payload) {
			return deny(ReasonPayloads, "%s", name)
		}
		x.payload = payload
		x.signers = append(x.signers, signer{file: name, key: key})
	}
	return nil
}

func (x *examination) open(data []byte) ([]byte, policyKey, error) {
	var b SigstoreBundle
	if err := decodeCanonical(data, &b); err != nil {
		return nil, policyKey{}, err
	}
	if b.MediaType != BundleMediaType {
		return nil, policyKey{}, deny(ReasonMediaType, "%q", b.MediaType)
	}
	e := b.DSSEEnvelope
	if len(e.Signatures) != 1 {
		return nil, policyKey{}, deny(ReasonSignatureCount, "%d", len(e.Signatures))
	}
	if e.PayloadType != InTotoType {
		return nil, policyKey{}, deny(ReasonPayloadType, "%q", e.PayloadType)
	}
	hint := b.VerificationMaterial.PublicKey.Hint
	key, ok := x.q.Policy.keys[hint]
	if !ok || e.Signatures[0].KeyID != "" {
		return nil, policyKey{}, deny(ReasonKeyUnknown, "hint %q", hint)
	}
	if !key.key.Verify(PAE(e.PayloadType, e.Payload), e.Signatures[0].Sig) {
		return nil, policyKey{}, deny(ReasonSignature, "key %s", key.SPKIDigest)
	}
	return e.Payload, key, nil
}

// keys is the part of step 6 that needs no payload: the key's role. The rest follows in
// subjects, when the payload is known to be of our schema.
func (x *examination) keys() error {
	for _, s := range x.signers {
		if !evidenceRole(s.key.Role) {
			return deny(ReasonKeyRole, "key %s is a %s key", s.key.SPKIDigest, s.key.Role)
		}
		if s.key.RevokedAt != "" {
			return deny(ReasonKeyRevoked, "key %s at %s", s.key.SPKIDigest, s.key.RevokedAt)
		}
	}
	return nil
}

// header is what step 7 reads before it demands the whole schema, so that another statement
// gets the code that says so.
type header struct {
	Type, PredicateType string
}

func (x *examination) types() error {
	err := strictjson.Unmarshal(x.payload, &x.statement, payloadLimits)
	if err != nil {
		h, herr := peekHeader(x.payload)
		switch {
		case herr != nil:
			return deny(ReasonPayloadJSON, "%v", err)
		case h.Type != StatementType:
			return deny(ReasonStatementType, "%q", h.Type)
		case h.PredicateType != PredicateType:
			return deny(ReasonPredicateType, "%q", h.PredicateType)
		}
		return deny(ReasonPayloadJSON, "%v", err)
	}
	if x.statement.Type != StatementType {
		return deny(ReasonStatementType, "%q", x.statement.Type)
	}
	if x.statement.PredicateType != PredicateType {
		return deny(ReasonPredicateType, "%q", x.statement.PredicateType)
	}
	return nil
}

// peekHeader reads the two type members of a payload that is strict JSON of some shape.
func peekHeader(payload []byte) (header, error) {
	var m map[string]any
	if err := strictjson.Unmarshal(payload, &m, payloadLimits); err != nil {
		return header{}, err
	}
	t, _ := m["_type"].(string)
	pt, _ := m["predicateType"].(string)
	return header{Type: t, PredicateType: pt}, nil
}

func (x *examination) schema() error {
	if err := CheckSchema(x.statement.Predicate); err != nil {
		return err
	}
	x.decoded = true
	// The rest of step 6, in its place: scope and dates need members that the schema checks.
	p := x.statement.Predicate
	finished, _ := p.Run.FinishedAt.Time()
	for _, s := range x.signers {
		if s.key.Role != p.Issuer.Role {
			return deny(ReasonKeyRole, "a %s key signed as %s", s.key.Role, p.Issuer.Role)
		}
		if _, ok := x.q.Policy.doc.Thresholds[s.key.Role]; !ok {
			return deny(ReasonKeyRole, "the policy takes no evidence of role %s", s.key.Role)
		}
		if err := s.key.usable(p.Cohort.ID, finished, x.q.Now); err != nil {
			return err
		}
	}
	if x.signers[0].key.Identity != p.Issuer.ID {
		return deny(ReasonKeyIssuer, "issuer %q, key of %q", p.Issuer.ID, x.signers[0].key.Identity)
	}
	return nil
}

func (x *examination) subjects() error {
	p := x.statement.Predicate
	want := Subjects(p.Images, p.Binaries)
	if n := len(x.statement.Subject); n == 0 || n > MaxSubjects || n != len(want) {
		return deny(ReasonSubjects, "%d subjects for %d images and binaries", n, len(want))
	}
	seen := map[string]bool{}
	for i, s := range x.statement.Subject {
		w := want[i]
		if s.Name != w.Name || s.Digest != w.Digest || len(s.Annotations) != len(w.Annotations) ||
			s.Annotations["manifestDigest"] != w.Annotations["manifestDigest"] || seen[s.Digest.SHA256] {
			return deny(ReasonSubjects, "subject %d, %q", i, s.Name)
		}
		seen[s.Digest.SHA256] = true
	}
	for _, d := range x.q.Want {
		if !seen[strings.TrimPrefix(d, digestPrefix)] || !ValidDigest(d) {
			return deny(ReasonWanted, "%s", d)
		}
	}
	return nil
}

func (x *examination) cohort() error {
	p := x.statement.Predicate
	id, err := CohortID(p.Cohort.Descriptor)
	if err != nil || id != p.Cohort.ID {
		return deny(ReasonCohortID, "%s, computed %s", p.Cohort.ID, id)
	}
	if b := binary(p, BinarySandbox); b == "" || b != p.Cohort.Descriptor.Runtime.BinaryDigest {
		return deny(ReasonCohortBinary, "%s, cohort has %s", b, p.Cohort.Descriptor.Runtime.BinaryDigest)
	}
	if x.q.Cohort != "" && x.q.Cohort != p.Cohort.ID {
		return deny(ReasonCohortOther, "%s, want %s", p.Cohort.ID, x.q.Cohort)
	}
	if err := x.host(); err != nil {
		return err
	}
	if x.place, err = x.q.Policy.place(p.Cohort.Descriptor); err != nil {
		return err
	}
	for _, demanded := range []map[string]string{x.q.Policy.doc.RequiredCapabilities, x.place.Capabilities} {
		for _, name := range slices.Sorted(keysOf(demanded)) {
			if got, want := p.Cohort.Capabilities[name], demanded[name]; got != want {
				return deny(ReasonCapability, "%s is %q, want %q", name, got, want)
			}
		}
	}
	if Digest([]byte(p.LaunchProfile.Document)) != p.LaunchProfile.Digest {
		return deny(ReasonLaunchProfile, "%s", p.LaunchProfile.Digest)
	}
	return nil
}

// boundHost is the host that the evidence counts on alone, or "".
func (x *examination) boundHost() string {
	if !x.q.Policy.doc.BindHosts {
		return ""
	}
	return x.statement.Predicate.Run.Host
}

// host is the part of step 10 about the very host.
func (x *examination) host() error {
	made, bound := x.statement.Predicate.Run.Host, x.q.Policy.doc.BindHosts
	switch {
	case bound && made == "":
		return deny(ReasonHost, "the evidence names no host")
	case bound && x.q.Depth == AdmitDepth && x.q.Host == "":
		return deny(ReasonHost, "this host has no id")
	case x.q.Host != "" && (bound || x.q.Depth == AuditDepth) && made != x.q.Host:
		return deny(ReasonHost, "made on %q, want %q", made, x.q.Host)
	}
	return nil
}

// complete is step 11.
func (x *examination) complete() error {
	p, policy := x.statement.Predicate, x.q.Policy
	cat := policy.doc.Catalogue
	if x.q.Catalogue != nil {
		cat = *x.q.Catalogue
		own, err := cat.Digest()
		if err != nil || own != policy.catalogue {
			return deny(ReasonPolicyCatalogue, "policy %s, own %s", policy.catalogue, own)
		}
	}
	if p.Suite.CatalogueDigest != policy.catalogue || p.Suite.CatalogueID != cat.ID {
		return deny(ReasonCatalogue, "suite %s, want %s", p.Suite.CatalogueDigest, policy.catalogue)
	}
	if !subset(x.place.Profiles, p.Profiles) {
		return deny(ReasonProfile, "claimed %q, required %q", p.Profiles, x.place.Profiles)
	}
	need := p.need(x.place.Profiles)
	need.Waivers, need.Now = policy.doc.Waivers, x.q.Now
	j := Verdict(cat, p.Cases, need)
	x.catalogue, x.judgement = cat, &j
	if j.Verdict == Conformant {
		return nil
	}
	// A failure is named before what is merely missing.
	f := j.Findings[0]
	if i := slices.IndexFunc(j.Findings, Finding.failure); i >= 0 {
		f = j.Findings[i]
	}
	return deny(f.Code, "%s", strings.TrimSpace(f.Case+" "+f.Text))
}

// need is what p itself gives to be judged by, for the profiles of whoever judges.
func (p Predicate) need(profiles []string) Need {
	return Need{
		Profiles: profiles, Claims: p.Target.Claims, Features: p.Run.Arming.Features,
		Images: workloads(p.Images), Oracles: p.Run.Arming.Oracles,
	}
}

func binary(p Predicate, role string) string {
	for _, b := range p.Binaries {
		if b.Role == role {
			return b.Digest
		}
	}
	return ""
}
