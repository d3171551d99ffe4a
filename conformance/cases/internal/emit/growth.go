// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"context"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Growth is what output cost on the host, in bytes: peaks over what there was before.
type Growth struct {
	Worker  int64 // VmHWM of the runtime's daemon
	Sandbox int64 // memory of the sandbox's cgroup
	CPU     time.Duration
}

// Watch measures from now until stop. The worker's peak begins at its present size.
func Watch(ctx context.Context, t *conformance.T, c target.Container) (stop func() (Growth, error), err error) {
	worker, err := t.Target().Observer.WorkerPid()
	if err != nil {
		return nil, err
	}
	if err := oracle.ResetPeak(worker); err != nil {
		return nil, err
	}
	before, _, err := oracle.ResidentMemory(worker)
	if err != nil {
		return nil, err
	}
	cpu, err := oracle.CPUTime(worker)
	if err != nil {
		return nil, err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	groupBefore, err := group.Memory()
	if err != nil {
		return nil, err
	}
	end := group.Watch(ctx, 20*time.Millisecond)
	return func() (Growth, error) {
		peaks := end()
		_, peak, err := oracle.ResidentMemory(worker)
		if err != nil {
			return Growth{}, err
		}
		now, err := oracle.CPUTime(worker)
		if err != nil {
			return Growth{}, err
		}
		return Growth{Worker: peak - before, Sandbox: peaks.Memory - groupBefore, CPU: now - cpu}, nil
	}, nil
}

// Facts are g as a case records it.
func (g Growth) Facts() map[string]int64 {
	return map[string]int64{"workerBytes": g.Worker, "sandboxBytes": g.Sandbox, "workerCpuMs": g.CPU.Milliseconds()}
}
