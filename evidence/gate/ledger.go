// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/translog"
)

// LogFile is the last checkpoint that was seen of the log with this verifier key, in the state directory.
func LogFile(state, key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(state, "log-checkpoint-"+hex.EncodeToString(sum[:8]))
}

// Ledger is the policy's transparency log as it was read once: what it shows, or why it shows nothing.
type Ledger struct {
	view   *translog.View
	denial error // matches *evidence.Denied
}

// LogTrust reads the keys of a policy's log.
func LogTrust(l *evidence.PolicyLog) (*translog.Trust, error) {
	return translog.NewTrust(l.Key, l.Witnesses, int(l.Threshold))
}

// errNoDemand: who gives a log wants it to be looked at.
var errNoDemand = errors.New("a log is given, and the policy demands none")

// FollowLog reads the log in dir that policy demands, and holds it against the checkpoint in the directory state,
// which then has the newer one; state "" compares with nothing. mem knows of every log that was followed, so
// that a checkpoint that is lost is not taken for a first look. FollowLog returns nil for a policy that demands
// none. A log that is not there, or not to be trusted, denies every bundle; an error is of the reading.
func FollowLog(policy *evidence.Policy, dir, state string, mem *evidence.Memory) (*Ledger, error) {
	demand := policy.Document().Log
	if demand == nil && dir != "" {
		return nil, errNoDemand
	}
	if demand == nil {
		return nil, nil
	}
	trust, err := LogTrust(demand)
	if err != nil {
		return nil, &evidence.Denied{Reason: evidence.ReasonPolicyInvalid, Detail: "log: " + oneLine(err)}
	}
	if dir == "" {
		return &Ledger{denial: &evidence.Denied{Reason: evidence.ReasonLogMissing, Detail: "no log was given"}}, nil
	}
	l := &Ledger{}
	if state == "" {
		l.view, err = translog.Look(trust, dir)
		l.denial, err = ofLog(err)
		return l, err
	}
	memory := LogFile(state, demand.Key)
	if _, err := os.Lstat(memory); mem.FollowedLog(filepath.Base(memory)) && errors.Is(err, fs.ErrNotExist) {
		return &Ledger{denial: &evidence.Denied{Reason: evidence.ReasonLogFork, Detail: "what was seen of it before is lost"}}, nil
	}
	l.view, err = translog.Follow(trust, dir, memory)
	if l.denial, err = ofLog(err); l.denial == nil && err == nil {
		mem.SeeLog(filepath.Base(memory))
	}
	return l, err
}

// Refusal is why the log shows nothing, "" when it does, or none is demanded.
func (l *Ledger) Refusal() evidence.Reason {
	if l == nil {
		return ""
	}
	return evidence.ReasonOf(l.denial)
}

// apply is step 17 of an admitted decision about b, which was read from path.
func (l *Ledger) apply(d *evidence.Decision, b *evidence.Bundle, path string) error {
	if !d.Admitted {
		return nil
	}
	if l == nil {
		d.Deny(evidence.ReasonLogMissing, "no log was given")
		return nil
	}
	denial := l.denial
	if denial == nil {
		var err error
		if denial, err = l.prove(b, path); err != nil {
			return err
		}
	}
	var why *evidence.Denied
	if errors.As(denial, &why) {
		d.Deny(why.Reason, why.Detail)
		return nil
	}
	d.Hold(evidence.StepLog)
	return nil
}

// prove looks at the proof of every evidence file. A denial says that one is not shown.
func (l *Ledger) prove(b *evidence.Bundle, path string) (denial, err error) {
	for _, name := range b.EvidenceFiles() {
		file, _ := b.File(name)
		p, err := translog.ReadProof(translog.ProofPath(path, name))
		if err == nil {
			err = l.view.Contains(p, file)
		}
		if denial, err = ofLog(err); denial != nil || err != nil {
			return denial, err
		}
	}
	return nil, nil
}

// ofLog turns what a log or a proof was told to be into a denial. An error that says nothing of them stays one.
func ofLog(err error) (denial, other error) {
	if err == nil {
		return nil, nil
	}
	for _, row := range []struct {
		reason evidence.Reason
		causes []error
	}{
		{evidence.ReasonLogFork, []error{translog.ErrShrunk, translog.ErrForked}},
		{evidence.ReasonLogCheckpoint, []error{translog.ErrCheckpoint, translog.ErrRewritten}},
		{evidence.ReasonLogProof, []error{translog.ErrProof, translog.ErrNotLogged}},
		{evidence.ReasonLogMissing, []error{fs.ErrNotExist}},
	} {
		if slices.ContainsFunc(row.causes, func(c error) bool { return errors.Is(err, c) }) {
			return &evidence.Denied{Reason: row.reason, Detail: oneLine(err)}, nil
		}
	}
	return nil, err
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
