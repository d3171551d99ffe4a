// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// CohortAge is how old a measurement of the cohort may be at a start: measuring asks the engine and
// runs the sandbox binary, which would otherwise add to every start.
const CohortAge = 10 * time.Second

// measureTime bounds one measurement of the cohort, which takes a second at most on an idle host.
const measureTime = 30 * time.Second

// LiveConfig is a production worker's admission for as long as it runs. Everything but CohortAge
// and Elapsed is required, and CohortID of PinnedConfig must be empty: it is measured.
type LiveConfig struct {
	PinnedConfig
	// Programs are the paths of what every start runs; Digest reads one of them.
	Programs Programs
	Digest   func(path string) (string, error)
	// Cohort measures the id of the cohort as it is now.
	Cohort func(ctx context.Context) (string, error)
	// Host is the id of this host, "" for none; nil for a host without one. It is asked at every look.
	Host func() (string, error)
	// CohortAge bounds the age of a measurement at a start; the constant of that name by default.
	CohortAge time.Duration
	// Elapsed is the time since the worker started, which nobody can set back; by default that of
	// the monotonic clock.
	Elapsed func() time.Duration
	Log     *slog.Logger
}

// Programs are paths of the files whose bytes evidence is about.
type Programs struct{ Supervisor, Quota, SandboxBinary string }

// Live is the gate of a production worker that runs. At every start, the replacement of a container
// too, it reads policy, pins and evidence again and verifies them as at the worker's start, and reads
// the digests of the programs; the cohort is measured when its last measurement is older than
// CohortAge. What does not hold any more refuses starts, with the reason, until it holds again: pins
// that a gate has made anew are taken without a restart. It ends no sandbox that runs.
type Live struct {
	cfg   LiveConfig
	began time.Time

	pinned atomic.Pointer[Pinned] // the last that was admitted; read without waiting for a look

	mu       sync.Mutex
	cohort   string
	measured time.Duration // by Elapsed, when cohort was measured
	refusal  string        // of the last look, its reason or else its text; "" when it held
}

var _ Gate = (*Live)(nil)

// NewLive admits once, and is refused like [NewPinned].
func NewLive(ctx context.Context, c LiveConfig) (*Live, error) {
	if c.Digest == nil || c.Cohort == nil || c.Log == nil || c.CohortID != "" || c.CohortAge < 0 ||
		c.Programs.Supervisor == "" || c.Programs.Quota == "" || c.Programs.SandboxBinary == "" {
		return nil, errors.New("admission: a part is missing, or the cohort is not to be measured")
	}
	if c.CohortAge == 0 {
		c.CohortAge = CohortAge
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Elapsed == nil {
		start := time.Now()
		c.Elapsed = func() time.Duration { return time.Since(start) }
	}
	l := &Live{cfg: c, began: c.Now().Add(-c.Elapsed())}
	// What cannot be read refuses no start yet: the caller tells a mistake from a refusal.
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.verifyLocked(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// Look says whether any start would be admitted now, and logs when that has changed.
func (l *Live) Look(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.lookLocked(ctx)
	return err
}

// Watch looks every time until ctx ends, so that the log tells of a change before a start does.
func (l *Live) Watch(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// A look that is cut off by the end says nothing about the evidence.
			if err := l.Look(context.WithoutCancel(ctx)); err != nil {
				l.cfg.Log.DebugContext(ctx, "admission still does not hold", "err", err)
			}
		}
	}
}

// Precheck implements Gate.
func (l *Live) Precheck(ctx context.Context, s Start) error {
	return l.ask(ctx, s, (*Pinned).Precheck)
}

// Admit implements Gate.
func (l *Live) Admit(ctx context.Context, s Start) error { return l.ask(ctx, s, (*Pinned).Admit) }

func (l *Live) ask(ctx context.Context, s Start, ask func(*Pinned, context.Context, Start) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, err := l.lookLocked(ctx)
	if err != nil {
		return err
	}
	// The session names what it is going to run; the files are what would really run.
	if err := binaries(s, now.SupervisorDigest, now.QuotaDigest, now.SandboxBinaryDigest); err != nil {
		return err
	}
	return ask(l.pinned.Load(), ctx, s)
}

// lookLocked verifies everything that no single start is needed for, and returns the digests of the
// programs. Every error is UNQUALIFIED: what cannot be read is not known to hold.
//
// Precondition: l.mu is held.
func (l *Live) lookLocked(ctx context.Context) (Start, error) {
	now, err := l.verifyLocked(ctx)
	said := ""
	if err != nil {
		// By its code: the details of one refusal may differ from look to look.
		if said = string(evidence.ReasonOf(err)); said == "" {
			said = err.Error()
		}
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.Unqualified {
			err = refuse("%w", err)
		}
	}
	if said != l.refusal {
		if err != nil {
			l.cfg.Log.ErrorContext(ctx, "admission does not hold: starts are refused, what runs goes on", "err", err)
		} else {
			l.cfg.Log.InfoContext(ctx, "admission holds", "cohort", l.CohortID(), "pins", l.PinsDigest(), "until", l.pinned.Load().NotAfter())
		}
		l.refusal = said
	}
	return now, err
}

func (l *Live) verifyLocked(ctx context.Context) (Start, error) {
	var now Start
	for _, p := range []struct {
		what, path string
		to         *string
	}{
		{"supervisor", l.cfg.Programs.Supervisor, &now.SupervisorDigest},
		{"quota helper", l.cfg.Programs.Quota, &now.QuotaDigest},
		{"sandbox binary", l.cfg.Programs.SandboxBinary, &now.SandboxBinaryDigest},
	} {
		digest, err := l.cfg.Digest(p.path)
		if err != nil {
			return now, fmt.Errorf("read %s: %w", p.what, err)
		}
		*p.to = digest
	}
	if at := l.cfg.Elapsed(); l.cohort == "" || at-l.measured >= l.cfg.CohortAge {
		id, err := l.measureLocked(ctx)
		if err != nil {
			return now, fmt.Errorf("measure cohort: %w", err)
		}
		l.cohort, l.measured = id, at
	}
	c := l.cfg.PinnedConfig
	c.CohortID, c.Now = l.cohort, l.now
	if l.cfg.Host != nil {
		host, err := l.cfg.Host()
		if err != nil { // of use only under a policy that binds hosts, which then refuses
			l.cfg.Log.WarnContext(ctx, "the id of this host cannot be read", "err", err)
		}
		c.Host = host
	}
	p, err := NewPinned(c)
	if err != nil {
		return now, err
	}
	pins := p.admission.Pins()
	if err := binaries(now, pins.Binary(roleSupervisor), pins.Binary(roleQuota), pins.Binary(roleSandbox)); err != nil {
		return now, err
	}
	l.pinned.Store(p)
	return now, nil
}

// measureLocked bounds a measurement: other starts wait for it.
func (l *Live) measureLocked(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	return l.cfg.Cohort(ctx)
}

// now is the wall clock, unless that was set back: then time goes on from the worker's start, and
// what had expired stays so.
func (l *Live) now() time.Time {
	wall, counted := l.cfg.Now(), l.began.Add(l.cfg.Elapsed())
	if counted.After(wall) {
		return counted
	}
	return wall
}

// What follows is of the last admission that held. Whether it holds now, only a start is told.

// ManifestDigest implements Gate.
func (l *Live) ManifestDigest(configDigest string) string {
	return l.pinned.Load().ManifestDigest(configDigest)
}

// CohortID implements Gate.
func (l *Live) CohortID() string { return l.pinned.Load().CohortID() }

// PinsDigest implements Gate. It changes with the pins.
func (l *Live) PinsDigest() string { return l.pinned.Load().PinsDigest() }

// EvidenceDigests implements Gate.
func (l *Live) EvidenceDigests() []string { return l.pinned.Load().EvidenceDigests() }

// Images are the config digests of the pinned workload images.
func (l *Live) Images() []string { return l.pinned.Load().Images() }
