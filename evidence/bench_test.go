// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// BenchmarkDecide is one decision over a payload of about 100 KiB: what a worker does at its
// start (admit), what the gate does (audit), and a flipped bit, of which a sweep has one per
// byte of the evidence file.
func BenchmarkDecide(b *testing.B) {
	w := world(b)
	for range 25 {
		w.Statement.Predicate.Limitations = append(w.Statement.Predicate.Limitations, strings.Repeat("text ", 800))
	}
	bundle, q := bundleAndQuestion(b, w)
	file, _ := bundle.File(evidence.EvidenceFile)
	flipped := append([]byte(nil), file...)
	flipped[len(file)/2] ^= 1
	for _, bb := range []struct {
		name   string
		depth  evidence.Depth
		bundle *evidence.Bundle
		admit  bool
	}{
		{"admit", evidence.AdmitDepth, bundle, true}, {"audit", evidence.AuditDepth, bundle, true},
		{"flipped", evidence.AuditDepth, bundle.With(evidence.EvidenceFile, flipped), false},
	} {
		b.Run(bb.name, func(b *testing.B) {
			q.Depth = bb.depth
			b.ReportMetric(float64(len(file)), "file-bytes")
			for b.Loop() {
				if d := evidence.Decide(q, bb.bundle); d.Admitted != bb.admit {
					b.Fatal(d.Detail)
				}
			}
		})
	}
}
