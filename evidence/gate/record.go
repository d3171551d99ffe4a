// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// RecordFile is the decision record in the state directory: one line of JSON per decision about
// bundles, the newest last, each on disk before any pins are.
const RecordFile = "decisions.jsonl"

// Record is one line of the decision record.
type Record struct {
	Time     evidence.Timestamp `json:"time"`
	Policy   string             `json:"policyDigest"`
	Version  int64              `json:"policyVersion"`
	Admitted bool               `json:"admitted"`
	Reason   evidence.Reason    `json:"reason"`
	Detail   string             `json:"detail"`
	Host     string             `json:"host,omitempty"`  // that was asked for
	Nonce    string             `json:"nonce,omitempty"` // likewise
	Log      evidence.Reason    `json:"log,omitempty"`   // why the policy's log shows nothing
	Bundles  []RecordedBundle   `json:"bundles"`
	Fleet    evidence.Fleet     `json:"fleet"`
	Pins     string             `json:"pinsDigest"` // "" when none were made
}

// RecordedBundle is what was decided about one bundle.
type RecordedBundle struct {
	Admitted bool            `json:"admitted"`
	Reason   evidence.Reason `json:"reason"`
	Cohort   string          `json:"cohort"`
	Place    string          `json:"fleetCohort"`
	Payload  string          `json:"payloadDigest"`
	Evidence []string        `json:"evidenceDigests"`
}

func recordOf(c Config, r Result, version int64, pins []byte) Record {
	out := Record{
		Time: evidence.At(c.Now), Policy: r.Policy, Version: version, Admitted: r.Reason == "", Reason: r.Reason, Detail: r.Detail, Host: c.Host, Nonce: c.Nonce, Log: r.Log,
		Bundles: []RecordedBundle{}, Fleet: r.Fleet,
	}
	for _, d := range r.Decisions {
		out.Bundles = append(out.Bundles, RecordedBundle{d.Admitted, d.Reason, d.Cohort, d.Place, d.Payload, d.Evidence})
	}
	if pins != nil {
		out.Pins = evidence.Digest(pins)
	}
	return out
}

// append puts the record at the end of the file, whole, and waits for the disk. The caller holds
// the state directory.
func (r Record) append(dir string) (err error) {
	line, err := strictjson.Marshal(r)
	if err != nil {
		return fmt.Errorf("decision record: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, RecordFile), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("decision record: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	line = append(line, '\n')
	if cut, err := endsWithin(f); err != nil {
		return fmt.Errorf("decision record: %w", err)
	} else if cut {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := f.Write(line); err != nil {
		return fmt.Errorf("decision record: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("decision record: %w", err)
	}
	return nil
}

// endsWithin says whether the file ends within a line: a gate was ended while it wrote. What it left
// stays a line of its own, and is no record.
func endsWithin(f *os.File) (bool, error) {
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return false, err
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], st.Size()-1)
	return last[0] != '\n', err
}
