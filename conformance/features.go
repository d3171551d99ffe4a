// SPDX-License-Identifier: Apache-2.0

package conformance

import "context"

// Presence is what the suite saw of a feature, whatever the target claims.
type Presence string

// The closed set of presences. A claimed feature that is absent is the target's failure; a present
// one that is not claimed is reported.
const (
	Present Presence = "present"
	Absent  Presence = "absent"
	Unknown Presence = "unknown" // nothing could be looked at, for example for want of a part
)

// Probe looks whether a target has a feature. Look runs once per run, before the first case, for
// every feature, claimed or not; an error or a panic is the suite's fault and gives [Unknown].
type Probe struct {
	Feature Feature
	Look    func(ctx context.Context, t *T) (seen Presence, text string, err error)
}

// FeatureRecord is one feature as claimed and as seen.
type FeatureRecord struct {
	Feature  Feature  `json:"feature"`
	Claimed  bool     `json:"claimed"`
	Observed Presence `json:"observed"`
	Text     string   `json:"text"`
}
