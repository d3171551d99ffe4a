// SPDX-License-Identifier: Apache-2.0

package session

import "maps"

// Counts is what a Manager holds at one moment, and what it has done since it was made.
type Counts struct {
	Sandboxes map[string]int // not gone, by state as [States] names it
	Creating  int            // creates in flight
	Execs     int            // invocations in flight

	// Of the workspaces that sandboxes hold: what their quotas allow.
	ReservedBytes, ReservedInodes int64

	Retirements map[string]uint64 // begun, by reason as [Reasons] names it
	Removals    uint64            // proven
	Retries     uint64            // attempts at a removal that failed; each is followed by another
}

// States are the keys of [Counts.Sandboxes].
func States() []string { return []string{stateCreating, stateReady, stateRetiring} }

// Reasons are the keys of [Counts.Retirements].
func Reasons() []string {
	return []string{reasonIdle, reasonHard, reasonDispose, reasonDied, reasonCleanup, reasonShutdown}
}

// tally is what has been done. Manager.mu guards it.
type tally struct {
	retirements       map[string]uint64
	removals, retries uint64
}

func (t *tally) retired(reason string) {
	if t.retirements == nil {
		t.retirements = map[string]uint64{}
	}
	t.retirements[reason]++
}

// Counts returns one consistent view.
func (m *Manager) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := Counts{
		Sandboxes: map[string]int{}, Creating: m.creating, Execs: m.execs,
		Retirements: maps.Clone(m.done.retirements), Removals: m.done.removals, Retries: m.done.retries,
	}
	for _, s := range m.live {
		c.Sandboxes[s.rec.wireState()]++
		if !s.rec.Released {
			c.ReservedBytes += s.rec.Resources.WorkspaceBytes
			c.ReservedInodes += s.rec.Resources.WorkspaceInodes
		}
	}
	return c
}
