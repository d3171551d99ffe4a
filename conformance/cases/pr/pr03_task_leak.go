// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-03. Callers are more than a runtime keeps helpers ready for, so that helpers come
// and go too, and one fewer than commands may run at once, since one that the client left may still be
// ending. A sentry keeps the host processes of as many guests as it ever had at once: the first
// command has more than any later one, and a leak shows when these are used up, at 40 of 288 commands at
// the latest. The slack covers threads that a Go program, a sentry among them, makes once and keeps.
const (
	pr03Rounds  = 16
	pr03Callers = 3
	pr03Plain   = 4 // commands of a caller in a round that end well, beside one that is aborted and one that leaves children
	pr03Guests  = 24
	pr03Slack   = 16
	pr03PIDs    = 512
	pr03Memory  = 512 << 20 // some 6 MiB for each child: what leaks has to show in tasks before the memory is used up
	pr03Settle  = 15 * time.Second
	pr03Abort   = 100 * time.Millisecond
)

// PR03 runs several hundred short commands and counts what is left of them on the host.
var PR03 = conformance.Case{
	ID: "PR-03", Revision: 1, Title: "Slow host-task leak",
	Requirement: "Whatever a command needed on the host is given back: the sandbox's tasks, the runtime's descriptors and threads, and the dead that nobody has waited for return to what they were.",
	Threat:      "A sandbox that runs many commands, or a worker that lives for months, runs into a limit that no single command comes near.",
	Attack:      "288 short commands by 3 callers at once: most end by themselves, one in six is aborted while it sleeps (by its time-out, by a client that leaves, or because its program is missing), and one in six leaves three sleeping children in sessions of their own.",
	Witness:     "Commands that ran to their own end (at least 192), were aborted (at least 48), and left children by their own word (at least 48 commands, 144 children).",
	Oracle:      "pids.current of the sandbox, zombies below the sandbox's and the runtime's processes, open descriptors and threads of the runtime daemon, each on the host, after each round against what they were after a first round.",
	Precedent:   "gvisor#3942; kata#6455",
	Tier:        conformance.Full, Timeout: 240 * time.Second,
	Exclusive: true, // descriptors and threads of the daemon are counted, which other cases use too
	Features:  []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:     []conformance.Part{conformance.PartCgroup, conformance.PartConcurrent},
	Oracles:   []conformance.Oracle{conformance.OracleCgroup, conformance.OracleProcess},
	Kills:     []conformance.Kill{{Mutant: "m06", Reason: "tasks-leaked"}, {Mutant: "m76", Reason: "tasks-leaked"}},
	Run:       runPR03,
}

// held is what commands may have left on the host. What the target does not show is 0.
type held struct{ tasks, zombies, descriptors, threads int64 }

// holding counts once.
func holding(t *conformance.T, group oracle.Cgroup) (h held, err error) {
	if h.tasks, err = group.PIDs(); err != nil {
		return h, err
	}
	parents := map[int]bool{}
	worker, err := t.Target().Observer.WorkerPid()
	switch {
	case errors.Is(err, target.ErrUnavailable):
	case err != nil:
		return h, err
	default:
		parents[worker] = true
		dir := "/proc/" + strconv.Itoa(worker)
		for name, n := range map[string]*int64{"/fd": &h.descriptors, "/task": &h.threads} {
			entries, err := os.ReadDir(dir + name)
			if err != nil {
				return h, err
			}
			*n = int64(len(entries))
		}
	}
	procs, err := group.Procs()
	if err != nil {
		return h, err
	}
	table, err := oracle.Processes()
	if err != nil {
		return h, err
	}
	for _, pid := range procs {
		parents[pid] = true
		if p, ok := table[pid]; ok && p.Parent > 1 {
			parents[p.Parent] = true // the engine's process beside the sandbox
		}
	}
	for _, p := range table {
		if p.State == 'Z' && parents[p.Parent] {
			h.zombies++
		}
	}
	return h, nil
}

// above lists what is more than in base, with the slack.
func (h held) above(base held) (over []string) {
	for _, x := range []struct {
		name      string
		now, then int64
		slack     int64
	}{
		{"tasks", h.tasks, base.tasks, max(pr03Slack, base.tasks/20)},
		{"zombies", h.zombies, base.zombies, 0},
		{"descriptors", h.descriptors, base.descriptors, max(pr03Slack, base.descriptors/20)},
		{"threads", h.threads, base.threads, max(pr03Slack, base.threads/20)},
	} {
		if x.now > x.then+x.slack {
			over = append(over, x.name)
		}
	}
	return over
}

func (h held) observed() map[string]int64 {
	return map[string]int64{"tasks": h.tasks, "zombies": h.zombies, "descriptors": h.descriptors, "threads": h.threads}
}

// work is what a round's commands came to.
type work struct{ ended, aborted, leavers, children int64 }

// round runs the commands of all callers of one round, step by step, so that all of them have ended at
// once again and again. An error is one that no runtime names; refused is
// the first end that a command should not have had.
func round(ctx context.Context, sb target.Sandbox, program string, number int) (w work, refused string, err error) {
	for i := range pr03Plain + 2 {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for caller := range pr03Callers {
			kind := "plain"
			switch {
			case i == pr03Plain:
				kind = []string{"time-out", "cancel", "missing"}[(number+caller)%3]
			case i > pr03Plain:
				kind = "leave"
			}
			wg.Go(func() {
				one, end, trouble := shortCommand(ctx, sb, program, kind)
				mu.Lock()
				defer mu.Unlock()
				w.ended, w.aborted, w.leavers, w.children = w.ended+one.ended, w.aborted+one.aborted, w.leavers+one.leavers, w.children+one.children
				if refused == "" {
					refused = end
				}
				err = errors.Join(err, trouble)
			})
		}
		wg.Wait()
		if refused != "" || err != nil {
			break
		}
	}
	return w, refused, err
}

func shortCommand(ctx context.Context, sb target.Sandbox, program, kind string) (w work, wrong string, err error) {
	cmd := target.Command{Argv: attack.Command(program, "noop"), Timeout: 20 * time.Second}
	call := ctx
	switch kind {
	case "time-out":
		cmd.Argv, cmd.Timeout = attack.Command(program, "contract", "-sleep", "60s"), pr03Abort
	case "cancel":
		var cancel context.CancelFunc
		call, cancel = context.WithTimeout(ctx, pr03Abort)
		defer cancel()
		cmd.Argv = attack.Command(program, "contract", "-sleep", "60s")
	case "missing":
		cmd.Argv = []string{"./no-such-program"}
	case "leave":
		cmd.Argv = attack.Command(program, "leave-behind", "-n", "3")
	}
	o := attack.Run(call, sb, cmd)
	wrong = fmt.Sprintf("%s: code %q, exit code %d %s, timed out %v", kind, o.Code, o.Result.ExitCode, o.Result.Signal, o.Result.TimedOut)
	switch {
	case kind == "cancel":
		if ctx.Err() == nil && call.Err() != nil {
			return work{aborted: 1}, "", nil
		}
		return w, wrong, o.Trouble()
	case o.Trouble() != nil:
		return w, "", o.Trouble()
	case kind == "time-out" && o.Result.TimedOut, kind == "missing" && o.Err == nil && o.Result.ExitCode != 0, kind == "missing" && o.Code != "":
		return work{aborted: 1}, "", nil
	case kind == "leave" && o.Err == nil && o.Result.ExitCode == 0:
		return work{leavers: 1, children: o.Report.Counts["left"]}, "", nil
	case kind == "plain" && o.Err == nil && o.Result.ExitCode == 0 && !o.Result.TimedOut:
		return work{ended: 1}, "", nil
	}
	return w, wrong, nil
}

func runPR03(ctx context.Context, t *conformance.T) error {
	// Arrange: a crowd and a first round make what is made once.
	sb := t.Sandbox(ctx, target.Spec{PIDs: pr03PIDs, MemoryBytes: pr03Memory})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	first, err := holding(t, group)
	if err != nil {
		return err
	}
	crowd := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "leave-behind", "-n", strconv.Itoa(pr03Guests))})
	if err := crowd.Trouble(); err != nil {
		return err
	}
	if crowd.Report.Counts["left"] < pr03Guests {
		return fmt.Errorf("the first command left %d children: code %q, %.200s", crowd.Report.Counts["left"], crowd.Code, crowd.Result.Stderr)
	}
	if _, wrong, err := round(ctx, sb, program, 0); err != nil {
		return err
	} else if wrong != "" {
		return fmt.Errorf("the first round: %s", wrong)
	}
	// What is on its way out is no part of the baseline: the least of some samples.
	base := held{oracle.Unlimited, oracle.Unlimited, oracle.Unlimited, oracle.Unlimited}
	samples := 0
	if _, err := attack.Eventually(ctx, pr03Settle, func() (bool, error) {
		h, err := holding(t, group)
		base = held{min(base.tasks, h.tasks), min(base.zombies, h.zombies), min(base.descriptors, h.descriptors), min(base.threads, h.threads)}
		samples++
		return samples >= 10, err
	}); err != nil {
		return err
	}
	t.Observe("before the first command", first.observed())
	t.Observe("baseline", base.observed())

	t.NeedWitness("ended", pr03Rounds*pr03Callers*pr03Plain)
	t.NeedWitness("aborted", pr03Rounds*pr03Callers)
	t.NeedWitness("left-children", pr03Rounds*pr03Callers)
	t.NeedWitness("children", pr03Rounds*pr03Callers*3)
	for number := 1; number <= pr03Rounds; number++ {
		// Attack.
		w, wrong, err := round(ctx, sb, program, number)
		if err != nil {
			return err
		}

		// Witness.
		t.Witness("ended", w.ended)
		t.Witness("aborted", w.aborted)
		t.Witness("left-children", w.leavers)
		t.Witness("children", w.children)

		// Verdict: one leak is enough, and so is a sandbox that does not outlive short commands.
		if wrong != "" && !group.Exists() {
			t.Fail("command-refused", "round %d: %s", number, wrong)
			break
		}
		var now held
		if _, err := attack.Eventually(ctx, pr03Settle, func() (bool, error) {
			now, err = holding(t, group)
			return len(now.above(base)) == 0, err
		}); err != nil {
			return err
		}
		t.Observe("round "+strconv.Itoa(number), now.observed())
		for _, what := range now.above(base) {
			t.Fail(what+"-leaked", "%s after %d rounds: %v, and %v before them", what, number, now.observed(), base.observed())
		}
		if wrong != "" {
			t.Fail("command-refused", "round %d: %s", number, wrong)
		}
		if wrong != "" || len(now.above(base)) > 0 {
			break
		}
	}
	return nil
}
