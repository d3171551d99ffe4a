// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Limits are the bounds that an operator may move. A zero member means its default. All of them
// are reported in health and are part of the security document: evidence that was made under
// other limits does not admit this worker.
type Limits struct {
	Nonces             int64 `json:"nonces,omitzero"`
	NoncesPerWorkspace int64 `json:"noncesPerWorkspace,omitzero"`
	Connections        int64 `json:"connections,omitzero"`
	Creates            int64 `json:"creates,omitzero"`
	Execs              int64 `json:"execs,omitzero"`
	ExecsPerSandbox    int64 `json:"execsPerSandbox,omitzero"`
}

// LimitBound is what one member of [Limits] may be, both ends inclusive.
type LimitBound struct {
	Name              string
	Default, Min, Max int64
	of                func(Limits) int64
	in                func(*api.Limits) *int64
}

// LimitBounds returns the bounds of every member. Why the ends: a nonce costs about 300 bytes of memory
// and of disk; a connection one descriptor and at most 4 MiB; a create and a sandbox processes of
// the engine; and a supervisor runs at most 8 invocations at once.
func LimitBounds() []LimitBound {
	return []LimitBound{
		{"nonces", 100_000, 1_000, 1_000_000, func(l Limits) int64 { return l.Nonces }, func(l *api.Limits) *int64 { return &l.Nonces }},
		{"noncesPerWorkspace", 10_000, 100, 1_000_000, func(l Limits) int64 { return l.NoncesPerWorkspace }, func(l *api.Limits) *int64 { return &l.NoncesPerShare }},
		{"connections", DefaultConnections, 8, 4096, func(l Limits) int64 { return l.Connections }, func(l *api.Limits) *int64 { return &l.Connections }},
		{"creates", 4, 1, 64, func(l Limits) int64 { return l.Creates }, func(l *api.Limits) *int64 { return &l.Creates }},
		{"execs", 64, 1, 1024, func(l Limits) int64 { return l.Execs }, func(l *api.Limits) *int64 { return &l.Execs }},
		{"execsPerSandbox", 4, 1, 8, func(l Limits) int64 { return l.ExecsPerSandbox }, func(l *api.Limits) *int64 { return &l.ExecsPerSandbox }},
	}
}

// validate returns every problem.
func (l Limits) validate() error {
	var bad []error
	for _, b := range LimitBounds() {
		if v := b.of(l); v != 0 && (v < b.Min || v > b.Max) {
			bad = append(bad, fmt.Errorf("limits.%s is %d, not within %d to %d", b.Name, v, b.Min, b.Max))
		}
	}
	eff := Config{Limits: &l}.EffectiveLimits()
	if eff.NoncesPerShare > eff.Nonces {
		bad = append(bad, errors.New("limits.noncesPerWorkspace is above limits.nonces: one workspace could use all of them"))
	}
	if eff.ExecsPerSandbox > eff.Execs {
		bad = append(bad, errors.New("limits.execsPerSandbox is above limits.execs"))
	}
	return errors.Join(bad...)
}

// EffectiveLimits are what the worker works within and reports: the defaults, with what the
// configuration moves.
func (c Config) EffectiveLimits() api.Limits {
	out := DefaultLimits(c.Ceilings)
	if c.Limits == nil {
		return out
	}
	for _, b := range LimitBounds() {
		if v := b.of(*c.Limits); v != 0 {
			*b.in(&out) = v
		}
	}
	return out
}

// DefaultLimits are what a worker reports for its ceilings when nothing is moved.
func DefaultLimits(ceilings api.Resources) api.Limits {
	out := api.Limits{
		RequestBytes: api.MaxRequestBytes, HeaderBytes: api.MaxHeaderBytes, OutputBytes: api.MaxOutputBytes, ResourceCeilings: ceilings,
	}
	for _, b := range LimitBounds() {
		*b.in(&out) = b.Default
	}
	return out
}
