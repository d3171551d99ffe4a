// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/translog"
)

const (
	logOrigin  = "corpus.example/log"
	firstFile  = "evidence.sigstore.json"
	secondFile = "evidence.2.sigstore.json"
)

// logged is a row's transparency log, which holds the evidence, with a proof beside the bundle.
type logged struct {
	d    *draft
	dir  string // of the row
	file []byte // evidence file
	log  string // directory

	second []byte // evidence file of another signer, or nil
}

// onLog makes the log, and a policy that demands it; spoil changes what there is.
func onLog(spoil func(l *logged) error) func(*draft) {
	return func(d *draft) {
		d.args = append(d.args, "--log", "log")
		d.ledger = func(dir string, files map[string][]byte) error {
			l := &logged{d: d, dir: dir, file: files[firstFile], second: files[secondFile], log: filepath.Join(dir, "log")}
			entries := [][]byte{[]byte("another"), []byte("one more"), l.file}
			if l.second != nil {
				entries = append(entries, l.second)
			}
			err := l.make(l.log, entries...)
			if err == nil {
				d.policy.Log = &evidence.PolicyLog{Witnesses: []string{}}
				d.policy.Log.Key, err = translog.LogVerifierKey(logOrigin, d.ring.log)
			}
			if err == nil {
				err = l.prove(l.log, l.file)
			}
			if err == nil && spoil != nil {
				err = spoil(l)
			}
			return err
		}
	}
}

// demand changes what the policy demands of the log.
func demand(f func(l *logged, p *evidence.PolicyLog) error) func(*draft) {
	return onLog(func(l *logged) error { return f(l, l.d.policy.Log) })
}

// make writes a log of these files into dir.
func (l *logged) make(dir string, files ...[]byte) (err error) {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	memory := dir + ".writer"
	defer func() { err = errors.Join(err, os.Remove(memory), os.Remove(memory+".lock")) }()
	if _, err := translog.Create(dir, memory, logOrigin, l.d.ring.log); err != nil {
		return err
	}
	log, err := translog.Open(dir, memory, logOrigin, l.d.ring.log)
	if err != nil {
		return err
	}
	_, err = log.Append(files...)
	return errors.Join(err, log.Close())
}

func (l *logged) look(dir string) (*translog.View, error) {
	trust, err := translog.NewTrust(l.d.policy.Log.Key, nil, 0)
	if err != nil {
		return nil, err
	}
	return translog.Look(trust, dir)
}

func (l *logged) proofPath() string { return l.proofOf(firstFile) }

func (l *logged) proofOf(file string) string {
	return translog.ProofPath(filepath.Join(l.dir, "bundle"), file)
}

// twoLogged is a bundle of two signers whose evidence files are both in the log; spoil changes what there is.
func twoLogged(spoil func(l *logged) error) func(*draft) {
	return func(d *draft) {
		onLog(func(l *logged) error {
			first, err := os.ReadFile(l.proofPath())
			if err != nil {
				return err
			}
			if err := errors.Join(l.prove(l.log, l.second), os.Rename(l.proofPath(), l.proofOf(secondFile))); err != nil {
				return err
			}
			if err := os.WriteFile(l.proofPath(), first, 0o644); err != nil || spoil == nil {
				return err
			}
			return spoil(l)
		})(d)
		d.twoSigners(2)
	}
}

// prove writes the proof that the log in dir holds file.
func (l *logged) prove(dir string, file []byte) error {
	v, err := l.look(dir)
	if err != nil {
		return err
	}
	p, err := v.Prove(file)
	if err != nil {
		return err
	}
	return os.WriteFile(l.proofPath(), p.Marshal(), 0o644)
}

// onProof changes the proof.
func onProof(f func(p *translog.Proof)) func(*draft) {
	return onLog(func(l *logged) error {
		text, err := os.ReadFile(l.proofPath())
		if err != nil {
			return err
		}
		p, err := translog.ParseProof(text)
		if err != nil {
			return err
		}
		f(&p)
		return os.WriteFile(l.proofPath(), p.Marshal(), 0o644)
	})
}

// seen lets the gate have seen the checkpoint of another log of the same key.
func seen(files ...string) func(*draft) {
	return onLog(func(l *logged) error {
		other := filepath.Join(l.dir, "log-seen")
		var list [][]byte
		for _, f := range files {
			list = append(list, []byte(f))
		}
		if err := l.make(other, list...); err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(other, "checkpoint"))
		if err != nil {
			return err
		}
		state := filepath.Join(l.dir, "state")
		return errors.Join(os.MkdirAll(state, 0o700), os.WriteFile(gate.LogFile(state, l.d.policy.Log.Key), text, 0o600), os.RemoveAll(other))
	})
}

// edited changes a file of the log, which is there.
func edited(name string, f func([]byte) []byte) func(*draft) {
	return onLog(func(l *logged) error {
		paths, err := filepath.Glob(filepath.Join(l.log, name))
		if err != nil || len(paths) != 1 {
			return fmt.Errorf("%s is %q: %w", name, paths, err)
		}
		text, err := os.ReadFile(paths[0])
		if err != nil {
			return err
		}
		return os.WriteFile(paths[0], f(text), 0o644)
	})
}

// logRows are about the policy's transparency log.
func logRows() []row {
	const g = "Log"
	witness := func(l *logged, p *evidence.PolicyLog, cosigns bool) error {
		key, err := translog.WitnessVerifierKey("witness.example", l.d.ring.witness)
		if err != nil {
			return err
		}
		p.Witnesses, p.Threshold = []string{key}, 1
		if !cosigns {
			return nil
		}
		trust, err := translog.NewTrust(p.Key, nil, 0)
		if err != nil {
			return err
		}
		memory := filepath.Join(l.dir, "log.witness")
		if _, err := translog.Cosign(trust, l.log, memory, "witness.example", l.d.ring.witness); err != nil {
			return err
		}
		return errors.Join(os.Remove(memory), os.Remove(memory+".lock"), l.prove(l.log, l.file))
	}
	return []row{
		{"log-holds", g, "", onLog(nil)},
		{"log-cosigned", g, "", demand(func(l *logged, p *evidence.PolicyLog) error { return witness(l, p, true) })},
		{"log-two-signers", g, "", twoLogged(nil)},
		{"log-second-signer-unproven", g, evidence.ReasonLogMissing, twoLogged(func(l *logged) error { return os.Remove(l.proofOf(secondFile)) })},
		{"log-second-signer-with-the-first-proof", g, evidence.ReasonLogProof, twoLogged(func(l *logged) error {
			return errors.Join(os.Remove(l.proofOf(secondFile)), os.Link(l.proofPath(), l.proofOf(secondFile)))
		})},
		{"log-proof-is-a-link", g, evidence.ReasonLogProof, onLog(func(l *logged) error {
			return errors.Join(os.Rename(l.proofPath(), l.proofPath()+".there"), os.Symlink(filepath.Base(l.proofPath())+".there", l.proofPath()))
		})},
		{"log-proof-is-a-directory", g, evidence.ReasonLogProof, onLog(func(l *logged) error {
			return errors.Join(os.Remove(l.proofPath()), os.Mkdir(l.proofPath(), 0o755))
		})},
		{"log-proof-too-large", g, evidence.ReasonLogProof, onLog(func(l *logged) error { return os.Truncate(l.proofPath(), 1<<20) })},
		{"log-not-given", g, evidence.ReasonLogMissing, func(d *draft) { onLog(nil)(d); d.args = nil }},
		{"log-not-there", g, evidence.ReasonLogMissing, onLog(func(l *logged) error { return os.RemoveAll(l.log) })},
		{"log-proof-not-there", g, evidence.ReasonLogMissing, onLog(func(l *logged) error { return os.Remove(l.proofPath()) })},
		{"log-proof-of-another-leaf", g, evidence.ReasonLogProof, onLog(func(l *logged) error { return l.prove(l.log, []byte("another")) })},
		{"log-proof-index-changed", g, evidence.ReasonLogProof, onProof(func(p *translog.Proof) { p.Index = 0 })},
		{"log-proof-index-past-size", g, evidence.ReasonLogProof, onProof(func(p *translog.Proof) { p.Index = 3 })},
		{"log-proof-hash-changed", g, evidence.ReasonLogProof, onProof(func(p *translog.Proof) { p.Hashes[0][0] ^= 1 })},
		{"log-proof-hash-missing", g, evidence.ReasonLogProof, onProof(func(p *translog.Proof) { p.Hashes = p.Hashes[1:] })},
		{"log-proof-no-text", g, evidence.ReasonLogProof, onLog(func(l *logged) error { return os.WriteFile(l.proofPath(), nil, 0o644) })},
		{"log-proof-checkpoint-unsigned", g, evidence.ReasonLogCheckpoint, onProof(func(p *translog.Proof) {
			p.Checkpoint = bytes.Replace(p.Checkpoint, []byte("\n3\n"), []byte("\n4\n"), 1)
		})},
		{"log-proof-of-a-fork", g, evidence.ReasonLogFork, onLog(func(l *logged) error {
			fork := filepath.Join(l.dir, "log-fork")
			if err := l.make(fork, []byte("not the other"), []byte("one more"), l.file); err != nil {
				return err
			}
			return errors.Join(l.prove(fork, l.file), os.RemoveAll(fork))
		})},
		{"log-proof-of-a-larger-tree", g, evidence.ReasonLogFork, onLog(func(l *logged) error {
			later := filepath.Join(l.dir, "log-later")
			if err := l.make(later, []byte("another"), []byte("one more"), l.file, []byte("later")); err != nil {
				return err
			}
			return errors.Join(l.prove(later, l.file), os.RemoveAll(later))
		})},
		{"log-seen-before", g, "", seen("another", "one more")},
		{"log-smaller-than-seen", g, evidence.ReasonLogFork, seen("another", "one more", "a", "b")},
		{"log-forked-since", g, evidence.ReasonLogFork, seen("not the other")},
		{"log-of-an-unknown-key", g, evidence.ReasonLogCheckpoint, demand(func(l *logged, p *evidence.PolicyLog) (err error) {
			p.Key, err = translog.LogVerifierKey(logOrigin, l.d.ring.stranger)
			return err
		})},
		{"log-of-another-origin", g, evidence.ReasonLogCheckpoint, demand(func(l *logged, p *evidence.PolicyLog) (err error) {
			p.Key, err = translog.LogVerifierKey("other.example/log", l.d.ring.log)
			return err
		})},
		{"log-not-cosigned", g, evidence.ReasonLogCheckpoint, demand(func(l *logged, p *evidence.PolicyLog) error { return witness(l, p, false) })},
		{"log-checkpoint-edited", g, evidence.ReasonLogCheckpoint, edited("checkpoint", replace("\n3\n", "\n2\n"))},
		{"log-entry-swapped", g, evidence.ReasonLogCheckpoint, edited("tile/entries/*/*", func(b []byte) []byte { b[len(b)-2] ^= 1; return b })},
		{"log-key-is-none", g, evidence.ReasonPolicyInvalid, demand(func(_ *logged, p *evidence.PolicyLog) error { p.Key = "log"; return nil })},
		{"log-threshold-beyond-witnesses", g, evidence.ReasonPolicyInvalid, demand(func(_ *logged, p *evidence.PolicyLog) error { p.Threshold = 1; return nil })},
		{"log-holds-a-failure", g, evidence.ReasonCaseFailed, func(d *draft) {
			onLog(nil)(d)
			c := &d.st.Predicate.Cases[0]
			c.Status, c.Reason = evidence.StatusFail, "escaped"
			d.reseal()
		}},
	}
}
