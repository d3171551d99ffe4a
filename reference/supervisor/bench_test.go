// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkExec is a trivial static program through the bridge: one spawn and a few frames.
// "spawn" is what the keeper itself measured from fork to exit.
func BenchmarkExec(b *testing.B) {
	for _, kind := range []struct {
		name string
		make func(testing.TB) *sandbox
	}{{"host", hostSandbox}, {"runsc", func(t testing.TB) *sandbox { return runscSandbox(t) }}} {
		b.Run(kind.name, func(b *testing.B) {
			c := kind.make(b).connect(b)
			var all, spawn []time.Duration
			for b.Loop() {
				began := time.Now()
				o := must(b, c, spawnOf("exit", "0"))
				all, spawn = append(all, time.Since(began)), append(spawn, o.Duration)
			}
			slices.Sort(all)
			slices.Sort(spawn)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(spawn[len(spawn)/2].Microseconds()), "p50-spawn-us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
		})
	}
}
