// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// surveyEvery is how often a Manager looks for containers that should not be there.
const surveyEvery = time.Minute

// surveys looks again and again, until the Manager ends.
func (m *Manager) surveys() {
	defer m.wg.Done()
	t := time.NewTicker(surveyEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			ctx, cancel := context.WithTimeout(m.stop, m.lim.DisposeDeadline)
			m.survey(ctx, false)
			cancel()
		case <-m.stop.Done():
			return
		}
	}
}

// survey compares what the engine lists under the worker's label with the records. A container of a
// sandbox that is not gone is its retirement's matter. One whose exact random name stands in the record of
// a sandbox that is gone is ours too: a create of it has come twice, or later than anybody could know. It
// is removed, and a removal that fails is tried again by the next survey. The rest only looks like ours,
// whatever its labels say: it is reported once, and left alone. first says that nothing else runs yet;
// later a container may be on its way out when it is listed, and is reported when it is seen again.
func (m *Manager) survey(ctx context.Context, first bool) {
	listed, err := m.cfg.Engine.List(ctx, m.cfg.Identity.WorkerID)
	if err != nil {
		if m.stop.Err() == nil {
			m.log.Warn("list containers", "err", err)
		}
		return
	}
	m.mu.Lock()
	ours, left := map[string]bool{}, map[string]string{}
	for _, s := range m.live {
		ours[s.rec.Container] = true
	}
	for id, r := range m.gone.byID {
		left[r.Container] = id
	}
	m.mu.Unlock()
	seen := map[string]int{}
	var wg sync.WaitGroup
	for _, l := range listed {
		if ours[l.Name] {
			continue
		}
		if id, ok := left[l.Name]; ok {
			wg.Go(func() { m.removeLate(ctx, l, id) })
			continue
		}
		if seen[l.ID] = m.strangers[l.ID] + 1; seen[l.ID] == 2 || first {
			seen[l.ID] = 2
			m.log.Warn("container looks like ours and is left alone", "container", l.ID, "name", l.Name, "epoch", l.BootEpoch)
		}
	}
	wg.Wait()
	m.strangers = seen
}

// removeLate ends a container of a sandbox that was proven gone before it came.
func (m *Manager) removeLate(ctx context.Context, l engine.Listed, sandbox string) {
	if _, err := m.cfg.Engine.Remove(ctx, l.ID, l.Name); err != nil {
		m.log.Warn("late container not removed", "sandbox", sandbox, "container", l.ID, "err", err)
		return
	}
	m.log.Warn("late container removed", "sandbox", sandbox, "container", l.ID)
}
