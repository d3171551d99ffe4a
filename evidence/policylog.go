// SPDX-License-Identifier: Apache-2.0

package evidence

// PolicyLog demands that every evidence file is shown to be in one transparency log. Only the gate looks: a
// worker has the gate's pins, and no log.
type PolicyLog struct {
	Key       string   `json:"key"`       // verifier key of the log, in the form of C2SP signed-note
	Witnesses []string `json:"witnesses"` // verifier keys; sorted, unique
	Threshold int64    `json:"threshold"` // of the witnesses that must have cosigned, from 0 to all
}

const (
	maxWitnesses   = 32
	maxVerifierKey = 512 // bytes
)

// log checks the form; whether the keys are keys, the gate says, which has what reads them.
func (c *checker) log(l *PolicyLog) {
	if l == nil {
		return
	}
	c.want(l.Key != "" && len(l.Key) <= maxVerifierKey, "log.key")
	c.want(len(l.Witnesses) <= maxWitnesses && sortedUnique(l.Witnesses), "log.witnesses")
	for _, w := range l.Witnesses {
		c.want(w != "" && len(w) <= maxVerifierKey, "log.witnesses")
	}
	c.want(l.Threshold >= 0 && l.Threshold <= int64(len(l.Witnesses)), "log.threshold")
}
