// SPDX-License-Identifier: Apache-2.0

package session

import "time"

// The lifecycle is one table: what a sandbox is, what happens to it, what it is then, and what the
// Manager does about it. [record.step] is the only code that changes a state, and it knows this
// table alone. An event that has no row changes nothing: it came too late.
//
// docs/lifecycle.md shows the same table to people; a test compares the two.

// States; the wire says creating for intended and ready for replacing.
const (
	stateNone      = ""         // not a sandbox yet
	stateIntended  = "intended" // claimed; nothing of it exists outside the records
	stateCreating  = "creating" // the engine is asked, or has been asked, for its container
	stateReady     = "ready"
	stateReplacing = "replacing" // a secret-bearing invocation exchanges its container
	stateRetiring  = "retiring"  // everything of it is removed, again and again until that is proven
	stateGone      = "gone"
)

// event is what may happen to a sandbox.
type event string

// Events besides the reasons of a retirement, each of which is one too.
const (
	onClaim    event = "claim"    // a create is accepted
	onAsk      event = "ask"      // that the engine will be asked for a container is durable
	onServe    event = "serve"    // a create has made everything
	onRefuse   event = "refuse"   // a create failed before anything could be durable
	onFail     event = "fail"     // a create failed later, or was told to stop
	onReplace  event = "replace"  // a step of the exchange of its container is durable
	onReplaced event = "replaced" // the new container serves
	onEntomb   event = "entomb"   // all is removed but a name that a create may still be in flight under
	onRemoved  event = "removed"  // its removal is proven, and durable
	onLoad     event = "load"     // its record is found at a start
)

// effect is what the Manager does when a row of the table applies. Several go together, and are done
// in the order below.
type effect uint

const (
	own      effect = 1 << iota // into the indexes: lease and workspace are held
	arm                         // the lease runs from now on
	watch                       // the end of its container, or of its supervisor, will be noticed
	end                         // whoever works on it or in it is told to stop
	disarm                      // the lease's timer stops
	untold                      // nobody was told of it, so nothing of it is remembered
	remove                      // its removal begins
	free                        // the workspace is not held any more
	forget                      // out of the indexes; whoever waits for the end is told
	remember                    // its id answers as disposed for a while
)

// effects names them in the order in which they are done.
var effects = []struct {
	effect effect
	name   string
}{
	{own, "own"}, {arm, "arm"}, {watch, "watch"}, {end, "end"}, {disarm, "disarm"}, {untold, "untold"},
	{remove, "remove"}, {free, "free"}, {forget, "forget"}, {remember, "remember"},
}

// transition is one row of the table.
type transition struct {
	from string
	on   []event
	to   string
	do   effect
}

// reasons are the events that end a sandbox that somebody was told of.
var reasons = []event{reasonIdle, reasonHard, reasonDispose, reasonDied, reasonCleanup, reasonShutdown}

// lifecycle is the table. Of one state and one event there is at most one row. It has what can happen and
// no more: the model comes to each row, and nothing arms a lease, watches, or serves before a sandbox is ready.
var lifecycle = []transition{
	{stateNone, []event{onClaim}, stateIntended, own},

	{stateIntended, []event{onAsk}, stateCreating, 0},
	{stateIntended, []event{onRefuse}, stateGone, end | forget},
	{stateIntended, []event{onFail}, stateRetiring, end | untold | remove},
	{stateIntended, []event{reasonDispose, reasonShutdown}, stateIntended, end}, // the create then fails: nothing is removed while it is made
	{stateIntended, []event{onLoad}, stateRetiring, own | end | untold | remove},

	{stateCreating, []event{onServe}, stateReady, arm | watch},
	{stateCreating, []event{onFail}, stateRetiring, end | untold | remove},
	{stateCreating, []event{reasonDispose, reasonShutdown}, stateCreating, end},
	{stateCreating, []event{onLoad}, stateRetiring, own | end | untold | remove},

	{stateReady, []event{onReplace}, stateReplacing, 0},
	{stateReady, reasons, stateRetiring, end | disarm | remove},
	{stateReady, []event{onLoad}, stateRetiring, own | end | remove},

	{stateReplacing, []event{onReplace}, stateReplacing, 0},
	{stateReplacing, []event{onReplaced}, stateReady, watch},
	{stateReplacing, []event{reasonHard, reasonDispose, reasonCleanup, reasonShutdown}, stateRetiring, end | disarm | remove},
	{stateReplacing, []event{onLoad}, stateRetiring, own | end | remove},

	{stateRetiring, []event{onEntomb}, stateRetiring, free},
	{stateRetiring, []event{onRemoved}, stateGone, forget | remember},
	{stateRetiring, []event{onLoad}, stateRetiring, own | end | remove},

	{stateGone, []event{onLoad}, stateGone, remember},
}

// moves is the table as it is looked up.
var moves = func() map[string]map[event]transition {
	out := map[string]map[event]transition{}
	for _, t := range lifecycle {
		if out[t.from] == nil {
			out[t.from] = map[event]transition{}
		}
		for _, e := range t.on {
			out[t.from][e] = t
		}
	}
	return out
}()

// step changes the state of r and returns what has to be done; ok is false, and r is what it was,
// when nothing is said of on in that state.
func (r *record) step(on event) (do effect, ok bool) {
	t, ok := moves[r.State][on]
	if !ok {
		return 0, false
	}
	if t.do&remove != 0 && r.Reason == "" { // the first reason stays, also over a restart
		r.Reason = on.reason()
	}
	if t.do&untold != 0 {
		r.Failed = true
	}
	r.State = t.to
	return t.do, true
}

// reason is why a retirement that on begins has begun.
func (e event) reason() string {
	for _, r := range reasons {
		if e == r {
			return string(e)
		}
	}
	return reasonCleanup
}

// moveLocked lets on happen to s. It does nothing and returns false when it comes too late.
func (m *Manager) moveLocked(s *sandbox, on event) bool {
	from, id := s.rec.State, s.rec.SandboxID
	do, ok := s.rec.step(on)
	if !ok {
		return false
	}
	m.log.Debug("sandbox moves", "sandbox", id, "from", from, "on", string(on), "to", s.rec.State)
	if do&own != 0 {
		m.live[id], m.leases[s.rec.ClientLeaseID] = s, s
		if !s.rec.Released {
			m.workspaces[s.rec.WorkspaceID] = s
		}
	}
	if do&arm != 0 {
		m.armLocked(s)
	}
	if do&watch != 0 {
		m.wg.Add(1)
		go m.watch(s, s.rec.Generation, s.rec.ContainerID, s.control)
	}
	if do&end != 0 {
		s.end()
	}
	if do&disarm != 0 && s.timer != nil {
		s.timer.Stop()
	}
	if do&remove != 0 {
		m.done.retired(s.rec.Reason)
		m.log.Info("sandbox retiring", "sandbox", id, "generation", s.rec.Generation, "reason", s.rec.Reason)
		m.wg.Add(1)
		go m.retirement(s)
	}
	if do&(free|forget) != 0 && m.workspaces[s.rec.WorkspaceID] == s {
		delete(m.workspaces, s.rec.WorkspaceID)
	}
	if do&forget != 0 {
		delete(m.live, id)
		if m.leases[s.rec.ClientLeaseID] == s {
			delete(m.leases, s.rec.ClientLeaseID)
		}
		close(s.retired)
	}
	if do&remember != 0 && !s.rec.Failed {
		m.gone.add(s.rec)
		m.outlived = append(m.outlived, m.gone.forget(time.Now())...)
	}
	return true
}

// building reports whether a create works on s.
func (s *sandbox) building() bool {
	return s.rec.State == stateIntended || s.rec.State == stateCreating
}

// serves reports whether others may use s.
func (s *sandbox) serves() bool { return s.rec.State == stateReady || s.rec.State == stateReplacing }
