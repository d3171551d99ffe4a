// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Memory is the rollback memory of one gate or worker: the highest policy version and, per
// key, cohort and image, the highest sequence that was admitted or failed. It is durable: what
// [Memory.Save] returned nil for survives a crash. One process holds a state directory at a
// time. When the directory is lost, make new keys: an empty memory accepts old evidence.
type Memory struct {
	path   string
	unlock func() error
	doc    memoryFile
	stored []byte // what the file holds, as far as this process knows
}

type memoryFile struct {
	SchemaVersion int64               `json:"schemaVersion"`
	PolicyVersion int64               `json:"policyVersion"`
	PolicyDigest  string              `json:"policyDigest"`
	PolicyRoots   []string            `json:"policyRoots,omitempty"` // SPKI digests of the policy's signers
	PinsMade      Timestamp           `json:"pinsMade,omitempty"`    // of the newest pins that a worker has admitted
	Seen          map[string]lastSeen `json:"seen"`                  // "<spki digest> <cohort> <image>"
	// Nonces are payload digests of what answered first: "<cohort> <nonce>", or "<cohort>@<host> <nonce>" where the
	// policy binds hosts. There is one for each decision that asked with a nonce.
	Nonces map[string]string `json:"nonces,omitempty"`
	// Failures are the newest of each issuer, whichever of its keys signed it: "<cohort> <image> <issuer>".
	Failures map[string]lastFailure `json:"failures,omitempty"`
	Logs     []string               `json:"logs,omitempty"` // names of the transparency logs that were followed; sorted
}

type lastSeen struct {
	Sequence int64  `json:"sequence"`
	Payload  string `json:"payload"` // digest
	RunID    string `json:"runId"`
}

type lastFailure struct {
	FinishedAt Timestamp `json:"finishedAt"` // at the latest when it was seen
	Payload    string    `json:"payload"`    // digest
}

// ErrMemory means that the rollback memory cannot be read, locked or kept. Nothing may be
// admitted without it.
var ErrMemory = errors.New("rollback memory not usable")

// OpenMemory opens or makes the memory in dir and locks it until [Memory.Close].
func OpenMemory(dir string) (*Memory, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	unlock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("%w: lock %s: %w", ErrMemory, dir, err)
	}
	m := &Memory{path: filepath.Join(dir, "rollback.json"), unlock: unlock}
	m.doc = memoryFile{SchemaVersion: SchemaVersion, Seen: map[string]lastSeen{}}
	data, err := os.ReadFile(m.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, nil
	case err == nil:
		err = strictjson.Unmarshal(data, &m.doc, strictjson.Limits{Bytes: 64 << 20})
		m.stored = data
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: read %s: %w", ErrMemory, m.path, err), unlock())
	}
	return m, nil
}

// NewMemory returns an empty memory that [Memory.Save] does not write: for selftests and for
// showing what a gate would say, never for admission.
func NewMemory() *Memory {
	return &Memory{doc: memoryFile{SchemaVersion: SchemaVersion, Seen: map[string]lastSeen{}}}
}

// Close releases the lock.
func (m *Memory) Close() error {
	if m.unlock == nil {
		return nil
	}
	return m.unlock()
}

// Save writes the memory: new file, fsync, rename, fsync of the directory. One that has not changed
// since it was read is there already: a worker that looks before every start writes nothing.
func (m *Memory) Save() error {
	if m.path == "" {
		return nil
	}
	b, err := strictjson.Marshal(m.doc)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	if m.stored != nil && bytes.Equal(b, m.stored) {
		return nil
	}
	if err := WriteDurable(m.path, b, 0o600); err != nil {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	m.stored = b
	return nil
}

// WriteDurable replaces path by data so that after a crash there is either the old or the new
// file, whole.
func WriteDurable(path string, data []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (m *Memory) checkPolicy(p *Policy) error {
	switch {
	case p.doc.Version < m.doc.PolicyVersion:
		return deny(ReasonPolicyRollback, "version %d, version %d was seen", p.doc.Version, m.doc.PolicyVersion)
	case p.doc.Version == m.doc.PolicyVersion && p.digest != m.doc.PolicyDigest:
		return deny(ReasonPolicyRollback, "another policy of version %d was seen", p.doc.Version)
	case len(m.doc.PolicyRoots) > 0 && !slices.ContainsFunc(p.roots, func(r string) bool { return slices.Contains(m.doc.PolicyRoots, r) }):
		return deny(ReasonPolicyRotation, "signed by %s, before by %s", strings.Join(p.roots, ", "), strings.Join(m.doc.PolicyRoots, ", "))
	}
	return nil
}

// checkPins refuses pins that were made before others that were admitted: an image that the gate has
// taken back must not return with an older file of the same policy.
func (m *Memory) checkPins(made Timestamp) error {
	if made < m.doc.PinsMade { // both are written alike, so that their texts compare as their times do
		return deny(ReasonPinsRollback, "made at %s, others at %s", made, m.doc.PinsMade)
	}
	return nil
}

func (m *Memory) seePins(made Timestamp) { m.doc.PinsMade = max(m.doc.PinsMade, made) }

// SeePolicy remembers p.
func (m *Memory) SeePolicy(p *Policy) {
	if p.doc.Version >= m.doc.PolicyVersion {
		m.doc.PolicyVersion, m.doc.PolicyDigest, m.doc.PolicyRoots = p.doc.Version, p.digest, p.roots
	}
}

func (m *Memory) checkRun(key, cohort string, images []string, run Run, payload string) error {
	for _, image := range images {
		last, ok := m.doc.Seen[seenKey(key, cohort, image)]
		switch {
		case !ok || last.Payload == payload:
		case run.ID == last.RunID:
			return deny(ReasonRunReused, "run %s", run.ID)
		case run.Sequence < last.Sequence:
			return deny(ReasonRollback, "sequence %d, %d was seen for %s", run.Sequence, last.Sequence, image)
		case run.Sequence == last.Sequence:
			return deny(ReasonFork, "sequence %d", run.Sequence)
		}
	}
	return nil
}

// checkFailures refuses evidence that is not newer than a failure of its issuer: sequences are of one key, and
// while a key follows another the old one must not answer for the new one.
func (m *Memory) checkFailures(p Predicate, payload string) error {
	for _, image := range workloads(p.Images) {
		last, ok := m.doc.Failures[failureKey(p, image)]
		if ok && last.Payload != payload && p.Run.FinishedAt <= last.FinishedAt { // written alike: texts compare as times
			return deny(ReasonRollback, "finished at %s, a failure of %s was seen for %s", p.Run.FinishedAt, last.FinishedAt, image)
		}
	}
	return nil
}

func failureKey(p Predicate, image string) string {
	return p.Cohort.ID + " " + image + " " + p.Issuer.ID
}

// checkNonce refuses a second run that answers one nonce, whoever signed it: whoever asks twice wants to know of
// two runs.
func (m *Memory) checkNonce(cohort, host, nonce, payload string) error {
	if before, ok := m.doc.Nonces[nonceKey(cohort, host, nonce)]; nonce != "" && ok && before != payload {
		return deny(ReasonNonceReused, "%q was answered by %s", nonce, before)
	}
	return nil
}

// SeeNonce remembers which run answered the nonce that d asked for, whatever became of it: a nonce is good for
// one run. It is called before the next decision is made. The first answer stays.
func (m *Memory) SeeNonce(d Decision) {
	if d.statement == nil || d.nonce == "" || d.statement.Predicate.Run.Nonce != d.nonce {
		return
	}
	if m.doc.Nonces == nil {
		m.doc.Nonces = map[string]string{}
	}
	if key := nonceKey(d.Cohort, d.host, d.nonce); m.doc.Nonces[key] == "" {
		m.doc.Nonces[key] = d.Payload
	}
}

func nonceKey(cohort, host, nonce string) string {
	if host != "" {
		cohort += "@" + host
	}
	return cohort + " " + nonce
}

// FollowedLog says whether the log of this name was followed before; SeeLog remembers that it is.
func (m *Memory) FollowedLog(name string) bool { return slices.Contains(m.doc.Logs, name) }

// SeeLog remembers that the log of this name is followed.
func (m *Memory) SeeLog(name string) {
	if i, found := slices.BinarySearch(m.doc.Logs, name); !found {
		m.doc.Logs = slices.Insert(m.doc.Logs, i, name)
	}
}

// See remembers an admitted bundle, or an authentic one whose verdict was a failure: a newer
// failure outweighs an older pass. Other denials leave no trace, so that a narrowed run does
// not lock out the full one before it.
func (m *Memory) See(d Decision) {
	if d.statement == nil || !(d.Admitted || d.Reason.Failure()) {
		return
	}
	p := d.statement.Predicate
	if d.Reason.Failure() {
		m.seeFailure(p, d)
	}
	for _, key := range d.keys {
		for _, image := range workloads(p.Images) {
			k := seenKey(key, p.Cohort.ID, image)
			if m.doc.Seen[k].Sequence <= p.Run.Sequence {
				m.doc.Seen[k] = lastSeen{Sequence: p.Run.Sequence, Payload: d.Payload, RunID: p.Run.ID}
			}
		}
	}
}

// seeFailure takes no producer's word for a time that is still to come: it would outweigh every later run.
func (m *Memory) seeFailure(p Predicate, d Decision) {
	at := min(p.Run.FinishedAt, At(d.now))
	for _, image := range workloads(p.Images) {
		if k := failureKey(p, image); m.doc.Failures[k].FinishedAt <= at {
			if m.doc.Failures == nil {
				m.doc.Failures = map[string]lastFailure{}
			}
			m.doc.Failures[k] = lastFailure{FinishedAt: at, Payload: d.Payload}
		}
	}
}

func seenKey(key, cohort, image string) string { return key + " " + cohort + " " + image }
