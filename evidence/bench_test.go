// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

// BenchmarkAdmit is what a production worker does before every start, files and all: policy, pins, and
// a bundle of 120 cases. The median of b.N runs is printed beside the mean.
func BenchmarkAdmit(b *testing.B) {
	w, err := evidencetest.NewWide(time.Now(), 116)
	if err != nil {
		b.Fatal(err)
	}
	if n := len(w.Statement.Predicate.Cases); n != 120 {
		b.Fatalf("%d cases", n)
	}
	c := pinned(b, w)
	st, err := os.Stat(filepath.Join(c.Bundles[0], evidence.EvidenceFile))
	if err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	before := processorTime(b)
	for b.Loop() {
		began := time.Now()
		if _, err := evidence.Admit(c); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(len(took)), "cpu-ms/op")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
	b.ReportMetric(float64(st.Size()), "file-bytes")
}

// processorTime is what this process has used, which says more than the clock on a shared machine.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

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
