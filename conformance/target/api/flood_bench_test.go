// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// BenchmarkFlood is one command that writes 1 GiB to stdout against the largest output budget of the
// API, 4 MiB. It reports what it cost over what there was before, the highest of all iterations:
//
//   - worker-MiB: VmHWM of the worker, set to its resident memory before each iteration;
//   - supervisor-MiB: VmRSS of PID 1, its bridge and its largest keeper together, read inside by a root
//     foothold right after each flood. A sentry gives no VmHWM; Go's runtime gives memory back minutes
//     later, so what was taken is still there.
//   - sandbox-MiB: the kernel's own peak of the sandbox's cgroup since its start. The command, the
//     sentry and what it caches are in it too: no bound of the supervisor's, but nothing escapes it.
//
// Both begin after the first small command, which has paid for what is paid once.
func BenchmarkFlood(b *testing.B) {
	s := newBench(b)
	const budget, flood = 4 << 20, 1 << 30
	s.exec(program)
	group := oracle.Cgroup{Dirs: s.container(s.sb).Cgroups}
	worker, err := s.target.Observer.WorkerPid()
	if err != nil {
		b.Fatal(err)
	}
	must := func(n int64, err error) int64 {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	supervisor := func() (sum float64) {
		for _, v := range s.resident(s.sb) {
			sum += v
		}
		return sum
	}
	inside := supervisor()
	sandboxBefore := must(group.Memory())
	var workerGrown int64
	var insideGrown float64
	for b.Loop() {
		if err := oracle.ResetPeak(worker); err != nil {
			b.Fatal(err)
		}
		before, _, err := oracle.ResidentMemory(worker)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
		res, err := s.sb.Exec(ctx, target.Command{Argv: []string{"./tenant", "flood", "-bytes", "1073741824", "-time", "9m", "-progress", ""}, Timeout: 9 * time.Minute, MaxOutput: budget})
		cancel()
		if err != nil || res.ExitCode != 0 || len(res.Stdout) != budget || int64(len(res.Stdout))+res.DroppedBytes < flood {
			b.Fatalf("%d bytes returned, %d dropped, exit code %d, %v: %s", len(res.Stdout), res.DroppedBytes, res.ExitCode, err, res.Stderr)
		}
		_, peak, err := oracle.ResidentMemory(worker)
		if err != nil {
			b.Fatal(err)
		}
		workerGrown = max(workerGrown, peak-before)
		insideGrown = max(insideGrown, supervisor()-inside)
	}
	const MiB = 1 << 20
	b.ReportMetric(float64(workerGrown)/MiB, "worker-MiB")
	b.ReportMetric(insideGrown/MiB, "supervisor-MiB")
	b.ReportMetric(float64(must(group.MemoryPeak())-sandboxBefore)/MiB, "sandbox-MiB")
	b.ReportMetric(budget/MiB, "budget-MiB")
}
