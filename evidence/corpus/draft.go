// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// draft is a bundle, its policy and its history, on the way to a row's folder. st and blobs
// may be edited before the bundle is completed; the hooks change what completion gives, in
// the order in which they stand here. After each, the next layer is made from the changed one.
type draft struct {
	now    time.Time
	ring   ring
	st     evidence.Statement
	blobs  []evidence.Blob
	policy evidence.TrustPolicy
	signer key
	errs   []error // of edits

	statement func(*evidence.Statement)
	payload   func([]byte) []byte
	sign      func(message []byte) ([]byte, error) // instead of signer
	envelope  func(*evidence.SigstoreBundle)
	file      func([]byte) []byte         // evidence.sigstore.json
	files     func(map[string][]byte)     // all of the bundle
	dir       func(bundle string) error   // on disk
	doc       func([]byte) []byte         // policy document
	trust     func([]byte) []byte         // policy file
	rootKey   key                         // signs the policy, if set
	newRoots  []key                       // sign the policy, and stand in root.pub
	before    []func(*draft)              // earlier bundles that the gate has admitted
	olderSeen func(*evidence.TrustPolicy) // an earlier policy that the gate has seen
	alsoGive  func(*draft)                // a second bundle directory
	args      []string
	noTrust   bool
	archive   func(*evidence.Bundle) ([]byte, error) // the bundle as one file, instead of a directory

	// ledger makes a log of the evidence files in the row's folder.
	ledger func(dir string, files map[string][]byte) error
}

// copy returns an independent draft without hooks.
func (d *draft) copy() (*draft, error) {
	c := &draft{now: d.now, ring: d.ring, signer: d.ring.evidence, blobs: slices.Clone(d.blobs)}
	for _, x := range []struct{ from, to any }{{d.st, &c.st}, {d.policy, &c.policy}} {
		text, err := strictjson.Marshal(x.from)
		if err != nil {
			return nil, err
		}
		if err := strictjson.Unmarshal(text, x.to, strictjson.Limits{Bytes: 16 << 20}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// policyKey adds a key for all cohorts, valid around now and around the run.
func (d *draft) policyKey(k key, role, identity string) {
	d.policy.Keys = append(d.policy.Keys, evidence.PolicyKey{
		SPKIDigest: k.public.Digest(), SPKI: k.public.SPKI(), Algorithm: k.public.Algorithm(),
		Role: role, Identity: identity, Cohorts: "*",
		NotBefore: evidence.At(d.now.AddDate(-10, 0, 0)), NotAfter: evidence.At(d.now.AddDate(10, 0, 0)),
	})
	evidence.SortPolicyKeys(d.policy.Keys)
}

// trustKey adds a second evidence key of the issuer's role.
func (d *draft) trustKey(k key, identity string) {
	d.policyKey(k, d.st.Predicate.Issuer.Role, identity)
}

// entry is the policy's line of k.
func (d *draft) entry(k key) *evidence.PolicyKey {
	i := slices.IndexFunc(d.policy.Keys, func(p evidence.PolicyKey) bool { return p.SPKIDigest == k.public.Digest() })
	return &d.policy.Keys[i]
}

func (d *draft) setBlob(role string, body []byte) bool {
	i := slices.IndexFunc(d.blobs, func(b evidence.Blob) bool { return b.Role == role })
	if i >= 0 {
		d.blobs[i].Body = body
	}
	return i >= 0
}

func (d *draft) blob(role string) []byte {
	i := slices.IndexFunc(d.blobs, func(b evidence.Blob) bool { return b.Role == role })
	if i < 0 {
		d.errs = append(d.errs, fmt.Errorf("the bundle has no artifact of role %s", role))
		return nil
	}
	return d.blobs[i].Body
}

// reseal writes records and seal of the present rows, finishing in their order.
func (d *draft) reseal() {
	p := &d.st.Predicate
	chain, err := evidence.NewChain(p.Run.Arming)
	if err != nil {
		d.errs = append(d.errs, err)
		return
	}
	var records []byte
	for _, r := range p.Cases {
		line, err := chain.Add(r)
		if err != nil {
			d.errs = append(d.errs, err)
			return
		}
		records = append(records, line...)
	}
	finished, _ := p.Run.FinishedAt.Time()
	p.Run.Seal = chain.Seal(finished)
	d.setBlob(evidence.ArtifactRecords, records)
}

// newRun makes the draft another run: other id, other sequence, consistent records.
func (d *draft) newRun(sequence int64) {
	r := &d.st.Predicate.Run
	r.ID = evidence.Digest([]byte(r.ID))[len("sha256:"):][:32]
	r.Arming.RunID = r.ID
	r.Sequence = sequence
	d.reseal()
}

// twoSigners sets the threshold and lets a second key of another identity sign too.
func (d *draft) twoSigners(threshold int64) {
	d.trustKey(d.ring.second, "second")
	d.policy.Thresholds[d.st.Predicate.Issuer.Role] = threshold
	d.addFile(func(payload []byte) ([]byte, error) { return evidence.SealBundle(payload, d.ring.second) })
}

// addFile adds evidence.2.sigstore.json, made from the payload.
func (d *draft) addFile(seal func(payload []byte) ([]byte, error)) {
	d.files = func(files map[string][]byte) {
		var s evidence.SigstoreBundle
		err := strictjson.Unmarshal(files[evidence.EvidenceFile], &s, strictjson.Limits{Bytes: 16 << 20, StringBytes: 16 << 20})
		if err == nil {
			files["evidence.2.sigstore.json"], err = seal(s.DSSEEnvelope.Payload)
		}
		if err != nil {
			d.errs = append(d.errs, err)
		}
	}
}

// bundle completes the draft, layer by layer.
func (d *draft) bundle() (map[string][]byte, error) {
	b, st, err := evidence.MakeBundle(d.st, d.blobs, d.signer)
	if err != nil {
		return nil, err
	}
	if d.statement != nil {
		d.statement(&st)
	}
	payload, err := strictjson.Marshal(st)
	if err != nil {
		return nil, err
	}
	if d.payload != nil {
		changed := d.payload(payload)
		if string(changed) == string(payload) {
			return nil, errors.New("the payload was not changed")
		}
		payload = changed
	}
	sign := d.sign
	if sign == nil {
		sign = func(m []byte) ([]byte, error) { return d.signer.Sign(evidence.PAE(evidence.InTotoType, m)) }
	}
	sig, err := sign(payload)
	if err != nil {
		return nil, err
	}
	s := evidence.SigstoreBundle{
		MediaType:            evidence.BundleMediaType,
		VerificationMaterial: evidence.VerificationMaterial{PublicKey: evidence.PublicKeyIdentifier{Hint: d.signer.public.Hint()}},
		DSSEEnvelope:         evidence.Envelope{Payload: payload, PayloadType: evidence.InTotoType, Signatures: []evidence.Signature{{Sig: sig}}},
	}
	if d.envelope != nil {
		d.envelope(&s)
	}
	file, err := strictjson.Marshal(s)
	if err != nil {
		return nil, err
	}
	if d.file != nil {
		changed := d.file(file)
		if string(changed) == string(file) {
			return nil, errors.New("the bundle file was not changed")
		}
		file = changed
	}
	files := map[string][]byte{}
	for _, name := range b.Names() {
		files[name], _ = b.File(name)
	}
	files[evidence.EvidenceFile] = file
	if d.files != nil {
		d.files(files)
	}
	return files, errors.Join(d.errs...)
}

// trustFile signs the policy as it is: [evidence.SignPolicy] would refuse some rows.
func (d *draft) trustFile(p evidence.TrustPolicy) ([]byte, error) {
	doc, err := strictjson.Marshal(p)
	if err != nil {
		return nil, err
	}
	if d.doc != nil {
		doc = d.doc(doc)
	}
	signer := d.ring.root
	if d.rootKey.private != nil {
		signer = d.rootKey
	}
	if len(d.newRoots) > 0 {
		roots := make([]evidence.Signer, len(d.newRoots))
		for i, k := range d.newRoots {
			roots[i] = k
		}
		return evidence.SignPolicy(p, roots...)
	}
	file, err := evidence.SealEnvelope(evidence.PolicyType, doc, signer)
	if err == nil && d.trust != nil {
		file = d.trust(file)
	}
	return file, err
}

// write makes the row's folder and returns the gate's arguments.
func (d *draft) write(dir string, base *draft) ([]string, error) {
	files, err := d.bundle()
	if err != nil {
		return nil, err
	}
	gateKey, err := d.ring.gate.pem()
	if err != nil {
		return nil, err
	}
	if d.ledger != nil {
		if err := d.ledger(dir, files); err != nil {
			return nil, err
		}
	}
	trust, err := d.trustFile(d.policy)
	if err != nil {
		return nil, err
	}
	if d.noTrust {
		trust = nil
	}
	pool := filepath.Join(filepath.Dir(dir), "000-unmodified", "bundle")
	bundle := filepath.Join(dir, "bundle")
	writeBundle := func(to string, files map[string][]byte) error { return writeFiles(to, files, pool) }
	if d.archive != nil {
		bundle, writeBundle = bundle+".tar", d.writeArchive
	}
	steps := []func() error{
		func() error { return writeBundle(bundle, files) },
		func() error { return os.WriteFile(filepath.Join(dir, "root.pub"), d.rootsPEM(), 0o644) },
		func() error { return os.WriteFile(filepath.Join(dir, "gate.key"), gateKey, 0o600) },
		func() error { return os.WriteFile(filepath.Join(dir, "trust.json"), trust, 0o644) },
		func() error { return d.history(filepath.Join(dir, "state"), base) },
	}
	args := []string{"--root", "root.pub", "--trust", "trust.json", "--key", "gate.key", "--state", "state", "--out", "pins.json", "--bundle", filepath.Base(bundle)}
	if d.alsoGive != nil {
		second, err := base.copy()
		if err != nil {
			return nil, err
		}
		d.alsoGive(second)
		more, err := second.bundle()
		if err != nil {
			return nil, err
		}
		steps = append(steps, func() error { return writeFiles(filepath.Join(dir, "bundle-2"), more, pool) })
		args = append(args, "--bundle", "bundle-2")
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if d.dir != nil {
		if err := d.dir(bundle); err != nil {
			return nil, err
		}
	}
	return append(args, d.args...), nil
}

// rootsPEM are the roots that the gate is configured with.
func (d *draft) rootsPEM() []byte {
	out := d.ring.root.public.PEM()
	for _, k := range d.newRoots {
		if k.public.Digest() != d.ring.root.public.Digest() {
			out = append(out, k.public.PEM()...)
		}
	}
	return out
}

// writeFiles writes a bundle directory. Blobs that the unmodified row has too are linked: a
// corpus of a hundred rows would otherwise hold a hundred copies of every log.
func writeFiles(dir string, files map[string][]byte, pool string) error {
	for name, data := range files {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		from := filepath.Join(pool, filepath.FromSlash(name))
		if old, err := os.ReadFile(from); err == nil && string(old) == string(data) && os.Link(from, to) == nil {
			continue
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// history fills the row's rollback memory by letting the gate see earlier things.
func (d *draft) history(state string, base *draft) (err error) {
	mem, err := evidence.OpenMemory(state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	if d.olderSeen != nil {
		p := d.policy
		d.olderSeen(&p)
		c, err := base.copy()
		if err != nil {
			return err
		}
		file, err := c.trustFile(p)
		if err != nil {
			return err
		}
		seen, err := evidence.OpenPolicy(file, []evidence.PublicKey{d.ring.root.public}, mem, d.now)
		if err != nil {
			return err
		}
		mem.SeePolicy(seen)
	}
	for _, edit := range d.before {
		c, err := base.copy()
		if err != nil {
			return err
		}
		edit(c)
		files, err := c.bundle()
		if err != nil {
			return err
		}
		file, err := c.trustFile(c.policy)
		if err != nil {
			return err
		}
		policy, err := evidence.OpenPolicy(file, []evidence.PublicKey{d.ring.root.public}, evidence.NewMemory(), d.now)
		if err != nil {
			return err
		}
		q := evidence.Question{Policy: policy, Memory: mem, Nonce: c.st.Predicate.Run.Nonce, Now: d.now}
		got := evidence.Decide(q, evidence.NewBundle(files))
		if !got.Admitted && !got.Reason.Failure() {
			return fmt.Errorf("earlier bundle: %s", got.Detail)
		}
		mem.SeeNonce(got)
		mem.See(got)
	}
	return mem.Save()
}
