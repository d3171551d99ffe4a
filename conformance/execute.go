// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/onsi/gomega/gleak/goroutine"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// bench runs cases and arming probes against one open target.
type bench struct {
	target *target.Target
	tenant string
	blobs  string
	work   string // the driver's folder
	seed   int64
	armed  map[Oracle]bool
	// unarmed: no oracle was tried, and armed is an assumption, under which no case passes.
	unarmed bool
	log     func(string)

	// sharing says that the process is somebody else's too: what appears in it is not only ours.
	sharing bool
	grace   time.Duration // 0 is returnGrace
	settle  time.Duration // 0 is settleTime

	// A run of several processes; see [bench.othersScopes].
	proc, procs int
	shared      string // the folder that the processes share, "" when there is one process
	run, beside string // the run's id, and [Options.Beside]
	scope       scope

	timeScale int // [Options.TimeScale]

	// hostless: the target was seen to run no command at all, see [bench.know].
	hostless bool
}

func (b *bench) newT(id, image string) *T {
	t := &T{
		caseID: id, image: image, target: b.target, tenant: b.tenant, armed: b.armed, log: b.log,
		seed:    caseSeed(b.seed, id, image),
		witness: map[string]int64{}, need: map[string]int64{}, observed: map[string]any{},
	}
	t.lent = t.lend(b.target)
	t.count = func(ctx context.Context) (map[string]int64, error) {
		held, err := takeInventory(ctx, b.target, b.work, b.sharing)
		return held.count(), err
	}
	return t
}

func caseSeed(run int64, id, image string) int64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s\x00%s", run, id, image))
	return int64(binary.BigEndian.Uint64(sum[:8]) >> 11) // below 2^53: exact in every JSON reader
}

// execute runs one case over one image: the attack within its time-out, then what is to be kept of a
// case that did not pass, the clean-up, the leak checks and the canary search, whatever happened before.
func (b *bench) execute(ctx context.Context, c Case, image string) Execution {
	start := time.Now()
	t := b.newT(c.ID, image)
	since := share{tapeMark(b.target), logOffsets(b.target)}
	before, err := takeInventory(ctx, b.target, b.work, b.sharing)
	if err != nil {
		t.blind(err)
		return b.conclude(t, start)
	}
	own, held := takeFootprint(), b.daemon()
	b.attempt(ctx, t, c.Timeout, c.Run)
	captured := t.lacks()
	if captured {
		t.capture(b.target, since)
	}
	t.searchInspect(b.target)
	t.cleanUp(b.target)
	t.searchCanaries(b.target, since)
	b.findLeftovers(t, before)
	if !captured && t.lacks() {
		t.capture(b.target, since) // what the clean-up could not remove is still there
	}
	b.findOwnLeaks(t, own)
	t.observeDaemon(held, b.daemon())
	e := b.conclude(t, start)
	if b.unarmed && e.Status == Pass && len(c.Oracles) > 0 {
		e.Status, e.Reason, e.Text = Inconclusive, "oracle-unarmed."+string(c.Oracles[0]), "the run tried no oracle, so what none of them saw means nothing"
	}
	return e
}

// attempt runs run on a goroutine of its own, so that a case ends by runtime.Goexit and a
// panic is caught where it happens.
func (b *bench) attempt(ctx context.Context, t *T, timeout time.Duration, run func(context.Context, *T) error) {
	timeout = scaled(b.timeScale, timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errCaseTimeout)
	defer cancel()
	// What a case says after its context has ended is about the suite's clock, not about the target.
	defer context.AfterFunc(ctx, t.expire)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned := false
		defer func() {
			if v := recover(); v != nil {
				t.broke("panic", fmt.Sprintf("panic: %v\n%s", v, debug.Stack()))
			} else if !returned {
				t.vanished()
			}
		}()
		t.starts(goroutine.Current().ID)
		err := run(ctx, t)
		returned = true
		switch {
		case err == nil:
		case errors.Is(err, target.ErrUnavailable):
			t.setEnd(NotRun, "part-unavailable", err.Error())
		case ctx.Err() != nil: // reported below, with its cause
		default:
			t.broke("suite-error", err.Error())
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done:
		case <-time.After(b.patience()):
			t.abandon(fmt.Sprintf("the case did not return within %s of its end (%v); its goroutine is left behind", b.patience(), context.Cause(ctx)))
			return
		}
	}
	if ctx.Err() == nil {
		return
	}
	if context.Cause(ctx) == errCaseTimeout {
		t.setEnd(Errored, "timeout", fmt.Sprintf("not finished after %s", timeout))
	} else {
		t.broke("interrupted", "the run was interrupted")
	}
}

var errCaseTimeout = errors.New("case time-out")

// broke records that the suite is at fault. It outweighs everything that the case judged:
// what a broken case says is not evidence.
func (t *T) broke(reason, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = true
	t.ended = &ending{Errored, verdictNote{reason, text}}
}

// starts remembers the goroutine that may end the case.
func (t *T) starts(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.goroutine = id
}

// vanished is called when the case's goroutine ended without a return or a panic: only what T itself
// ended is meant so. A case that uses somebody else's FailNow has judged nothing that T knows of.
func (t *T) vanished() {
	t.mu.Lock()
	left := t.left
	t.mu.Unlock()
	if !left {
		t.broke("goexit", "the case's goroutine ended without a return and without a verdict")
	}
}

// abandon makes a case an error whose goroutine does not come back.
func (t *T) abandon(text string) {
	t.broke("timeout", text)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abandoned = true
}

// patience is how long a case may take to return after its context has ended.
func (b *bench) patience() time.Duration {
	if b.grace > 0 {
		return b.grace
	}
	return scaled(b.timeScale, returnGrace)
}

// settling is how long what ends by itself may take.
func (b *bench) settling() time.Duration {
	if b.settle > 0 {
		return b.settle
	}
	return scaled(b.timeScale, settleTime)
}

// setEnd records an ending unless there is one.
func (t *T) setEnd(s Status, reason, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended == nil {
		t.ended = &ending{s, verdictNote{reason, text}}
	}
}

// lacking says which witnesses are missing. It needs t.mu.
func (t *T) lacking() []string {
	var lacking []string
	var seen int64
	for _, n := range t.witness {
		seen += n
	}
	if seen <= 0 {
		lacking = append(lacking, "no dangerous event was witnessed")
	}
	for _, name := range slices.Sorted(maps.Keys(t.need)) {
		if t.witness[name] < t.need[name] {
			lacking = append(lacking, fmt.Sprintf("%s: %d of at least %d", name, t.witness[name], t.need[name]))
		}
	}
	return lacking
}

// lacks reports whether the case, as it stands, has not passed.
func (t *T) lacks() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0 || t.ended != nil || len(t.lacking()) > 0
}

// conclude turns what the case recorded into a status. A suite error of a case that judged
// nothing stands; a judged failure outweighs a missing witness.
func (b *bench) conclude(t *T, start time.Time) Execution {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	e := Execution{
		Workload: t.image, Status: Pass, Seed: t.seed, Failures: []string{},
		Witness: maps.Clone(t.witness), Need: maps.Clone(t.need),
		Observations: map[string]json.RawMessage{}, Artifacts: []Blob{},
	}
	for _, f := range t.failures {
		e.Failures = append(e.Failures, f.reason+": "+f.text)
	}
	lacking := t.lacking()
	switch {
	case len(t.failures) > 0 && !t.broken:
		e.Status, e.Reason, e.Text = Fail, t.failures[0].reason, t.failures[0].text
		if t.ended != nil {
			e.Ended = string(t.ended.status) + ":" + t.ended.reason
		}
	case t.ended != nil:
		e.Status, e.Reason, e.Text = t.ended.status, t.ended.reason, t.ended.text
	case len(lacking) > 0:
		e.Status, e.Reason, e.Text = Inconclusive, "no-witness", strings.Join(lacking, "; ")
	}
	for name, v := range t.observed {
		raw, err := encodeObservation(v)
		if err != nil {
			e.Status, e.Reason, e.Text = Errored, "suite-error", fmt.Sprintf("observation %s: %v", name, err)
			continue
		}
		e.Observations[name] = raw
	}
	for _, a := range t.artifacts {
		blob, err := b.keep(a.name, a.body)
		if err != nil {
			e.Status, e.Reason, e.Text = Errored, "suite-error", err.Error()
			continue
		}
		e.Artifacts = append(e.Artifacts, blob)
	}
	e.DurationMs = time.Since(start).Milliseconds()
	return e
}

// keep stores one artifact under its digest.
func (b *bench) keep(name string, body []byte) (Blob, error) {
	d := evidence.Digest(body)
	path := filepath.Join(b.blobs, strings.TrimPrefix(d, "sha256:"))
	if err := os.WriteFile(path, body, 0o644); err != nil {
		return Blob{}, fmt.Errorf("keep artifact %s: %w", name, err)
	}
	return Blob{Name: name, Digest: d, Size: int64(len(body))}, nil
}

// prerequisite returns the status and reason of a case that cannot run against this target, or
// an empty status.
func (b *bench) prerequisite(c Case, claims []string) (Status, string, string) {
	for _, f := range c.Features {
		if !slices.Contains(claims, string(f)) {
			return NotApplicable, "feature-not-claimed", "the target does not claim " + string(f)
		}
	}
	if b.hostless && slices.Contains(c.Features, FeatureExec) {
		return NotRun, "feature-absent", "the target claims exec, and the suite saw that it runs nothing"
	}
	for _, p := range c.Needs {
		if !slices.Contains(b.target.Parts, string(p)) {
			return NotRun, "part-unavailable", "the target lacks " + string(p)
		}
	}
	for _, o := range c.Oracles {
		if !b.armed[o] {
			return Inconclusive, "oracle-unarmed." + string(o), "the oracle did not detect its planted positive in this run"
		}
	}
	return "", "", ""
}

// arm tries one oracle. It is judged like a case.
func (b *bench) arm(ctx context.Context, a Arming, image string) OracleRecord {
	t := b.newT("arming/"+string(a.Oracle), image)
	start := time.Now()
	b.attempt(ctx, t, armingTimeout, a.Arm)
	t.cleanUp(b.target)
	e := b.conclude(t, start)
	return OracleRecord{Oracle: a.Oracle, Armed: e.Status == Pass, Text: strings.TrimPrefix(e.Reason+": "+e.Text, ": "), Witness: e.Witness}
}

// armingTimeout bounds one probe: it creates at most a sandbox or two.
const armingTimeout = 60 * time.Second
