// SPDX-License-Identifier: Apache-2.0

package evidence

// The worker's side. reference/admission uses exactly this:
//
//	func Admit(AdmitConfig) (*Admission, error)
//	func (*Admission) Check(Start, time.Time) error   // *Denied, see ReasonOf
//	func (*Admission) Pins() CohortPins
//	func (*Admission) Release() Pins
//	func (*Admission) NotAfter() time.Time

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"syscall"
	"time"
)

// AdmitConfig is where a worker's trust lies, and what it measured of itself. Every field but Host is
// required: an admission that would not look at one of them is refused.
type AdmitConfig struct {
	Root     string   // file: PEM public keys of the root
	Trust    string   // file: signed trust policy
	Pins     string   // file: signed pins
	Bundles  []string // bundle directories; raw artifacts need not be there
	StateDir string   // rollback memory, held by this process while Admit runs

	Cohort             string // id of the cohort measured now
	WorkerDigest       string // of this worker's own executable
	WorkerConfigDigest string // of its security-relevant configuration

	// Host is the id of this host, or "" where it has none; asked for when the policy binds hosts.
	Host string

	Now time.Time
}

// Admission is what a production worker may start. It is immutable.
type Admission struct {
	pins     CohortPins // of this cohort
	release  Pins       // whole
	notAfter time.Time
}

// Start is one container start, by the digests that would really be started.
type Start struct {
	ImageDigest         string // config digest
	SupervisorDigest    string
	QuotaDigest         string
	SandboxBinaryDigest string
	LaunchProfileDigest string
}

// maxPolicyFile bounds the files of trust in bytes.
const maxPolicyFile = 4 << 20

// Admit verifies, at admit depth, the policy, every bundle, and that the pins are exactly what
// the bundles give: a gate key alone pins nothing. Errors that match *Denied are decisions;
// others mean that something could not be read.
func Admit(c AdmitConfig) (_ *Admission, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	rootText, err := ReadTrustFile(c.Root)
	if err != nil {
		return nil, fmt.Errorf("read root key: %w", err)
	}
	roots, err := ParsePublicKeysPEM(rootText)
	if err != nil {
		return nil, fmt.Errorf("read root key: %w", err)
	}
	policyText, err := ReadTrustFile(c.Trust)
	if err != nil {
		return nil, fmt.Errorf("read trust policy: %w", err)
	}
	pinsText, err := ReadTrustFile(c.Pins)
	if err != nil {
		return nil, fmt.Errorf("read pins: %w", err)
	}
	mem, err := OpenMemory(c.StateDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	policy, err := OpenPolicy(policyText, roots, mem, c.Now)
	if err != nil {
		return nil, err
	}
	a, decisions, err := admit(c, policy, mem, pinsText)
	// A newer failure is worth remembering even when it denies.
	mem.SeePolicy(policy)
	for _, d := range decisions {
		mem.See(d)
	}
	if serr := mem.Save(); serr != nil {
		return nil, errors.Join(err, serr)
	}
	return a, err
}

func (c AdmitConfig) check() error {
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if v.Field(i).IsZero() && v.Type().Field(i).Name != "Host" {
			return deny(ReasonPolicyMissing, "admission: %s is not set", v.Type().Field(i).Name)
		}
	}
	if len(c.Bundles) == 0 {
		return deny(ReasonPinsEvidence, "no bundle is configured")
	}
	return nil
}

func admit(c AdmitConfig, policy *Policy, mem *Memory, pinsText []byte) (*Admission, []Decision, error) {
	release, made, err := verifyPins(pinsText, policy, c.Now)
	if err != nil {
		return nil, nil, err
	}
	if err := mem.checkPins(made); err != nil {
		return nil, nil, err
	}
	var decisions []Decision
	for _, dir := range c.Bundles {
		d, err := DecideDir(Question{
			Policy: policy, Memory: mem, Cohort: c.Cohort, Now: c.Now, Depth: AdmitDepth,
			Want: []string{c.WorkerDigest}, Host: c.Host,
		}, dir)
		if err != nil {
			return nil, decisions, err
		}
		decisions = append(decisions, d)
		if !d.Admitted {
			return nil, decisions, deny(d.Reason, "bundle %s: %s", dir, d.Detail)
		}
	}
	own, err := derivePins(policy, decisions)
	if err != nil {
		return nil, decisions, err
	}
	pins, err := release.ofThisCohort(own)
	if err != nil {
		return nil, decisions, err
	}
	if pins.WorkerConfig != c.WorkerConfigDigest {
		return nil, decisions, deny(ReasonNotPinned, "worker configuration %s, pinned %s", c.WorkerConfigDigest, pins.WorkerConfig)
	}
	for _, role := range []string{BinaryWorker, BinarySupervisor, BinaryQuota, BinarySandbox} {
		if pins.Binary(role) == "" {
			return nil, decisions, deny(ReasonNotPinned, "no %s is pinned", role)
		}
	}
	if pins.Binary(BinaryWorker) != c.WorkerDigest {
		return nil, decisions, deny(ReasonNotPinned, "worker %s", c.WorkerDigest)
	}
	end, _ := release.NotAfter.Time()
	if !c.Now.Before(end) {
		return nil, decisions, deny(ReasonExpired, "pins ended at %s", release.NotAfter)
	}
	mem.seePins(made)
	return &Admission{pins: pins, release: release, notAfter: end}, decisions, nil
}

// ofThisCohort compares what a gate signed with what the evidence gives here. The gate may pin fewer
// workloads, since another cohort may keep one back, and may end the release earlier; nothing else.
func (p Pins) ofThisCohort(own Pins) (CohortPins, error) {
	i := slices.IndexFunc(p.Cohorts, func(c CohortPins) bool { return c.compare(own.Cohorts[0]) == 0 })
	if i < 0 {
		return CohortPins{}, deny(ReasonPinsEvidence, "cohort %s is not in the release%s", own.Cohorts[0].Cohort, onHost(own.Cohorts[0].Host))
	}
	signed, derived := p.Cohorts[i], own.Cohorts[0]
	for _, m := range signed.Images {
		if !slices.Contains(derived.Images, m) {
			return CohortPins{}, deny(ReasonPinsEvidence, "no evidence here gives image %s as it is pinned", m.ConfigDigest)
		}
	}
	derived.Images = signed.Images
	if !reflect.DeepEqual(signed, derived) {
		return CohortPins{}, deny(ReasonPinsEvidence, "pins and bundles give different digests")
	}
	return signed, nil
}

func onHost(host string) string {
	if host == "" {
		return ""
	}
	return " for the host " + host
}

// Binary returns the pinned digest of a role, or "".
func (p CohortPins) Binary(role string) string {
	for _, b := range p.Binaries {
		if b.Role == role {
			return b.Digest
		}
	}
	return ""
}

// Pins returns what was admitted for this cohort. Its lists must not be changed.
func (a *Admission) Pins() CohortPins { return a.pins }

// Release returns the whole release decision, of which [Admission.Pins] is this cohort's part.
func (a *Admission) Release() Pins { return a.release }

// NotAfter is when the admission ends, whatever the worker's uptime.
func (a *Admission) NotAfter() time.Time { return a.notAfter }

// Check says whether s may start at now. It is a comparison of strings: call it before every
// container start.
func (a *Admission) Check(s Start, now time.Time) error {
	if !now.Before(a.notAfter) {
		return deny(ReasonExpired, "pins ended at %s", a.release.NotAfter)
	}
	if !slices.ContainsFunc(a.pins.Images, func(m PinnedImg) bool {
		return m.Role == ImageWorkload && m.ConfigDigest == s.ImageDigest
	}) {
		return deny(ReasonNotPinned, "image %s", s.ImageDigest)
	}
	for _, f := range []struct{ what, got, want string }{
		{"supervisor", s.SupervisorDigest, a.pins.Binary(BinarySupervisor)},
		{"quota helper", s.QuotaDigest, a.pins.Binary(BinaryQuota)},
		{"sandbox binary", s.SandboxBinaryDigest, a.pins.Binary(BinarySandbox)},
		{"launch profile", s.LaunchProfileDigest, a.pins.LaunchProfile},
	} {
		if f.got != f.want || f.want == "" {
			return deny(ReasonNotPinned, "%s %s, pinned %s", f.what, f.got, f.want)
		}
	}
	return nil
}

// ReadTrustFile reads a root key, policy or pins file of at most 4 MiB. It follows links, as files that are put in
// place often are, and waits for nobody.
func ReadTrustFile(path string) (_ []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() && !st.IsDir() { // reading a directory is an error of its own
		return nil, errors.Join(err, fmt.Errorf("%s: %w", path, errNotRegular))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPolicyFile+1))
	if err == nil && len(b) > maxPolicyFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxPolicyFile)
	}
	return b, err
}
