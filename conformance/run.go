// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// stopBudget bounds an interrupted child: one case's clean-up and the target's end. A child
// that takes longer is killed; what it leaves, the driver sweeps at its next start.
const stopBudget = returnGrace + cleanupBudget + closeTimeout

// Outcome is what a run came to.
type Outcome struct {
	RunID       string
	Interrupted bool
	Report      Report
	// Bundle is the folder of the signed bundle, or "" when none was signed; Unsigned says why.
	Bundle   string
	Unsigned string
}

// Run executes the selected cases in a child of this program and reports them. Whatever the
// cases come to is an Outcome; an error means that the run itself could not be done. When ctx
// ends, the child cleans up within a bound and nothing is signed.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := o.check(); err != nil {
		return Outcome{}, fmt.Errorf("run options: %w", err)
	}
	cases, err := o.Suite.Select(o.Tier, o.CaseIDs)
	if err != nil {
		return Outcome{}, fmt.Errorf("select cases: %w", err)
	}
	catalogue, err := o.Suite.CatalogueDigest()
	if err != nil {
		return Outcome{}, fmt.Errorf("catalogue: %w", err)
	}
	raw, err := o.prepare()
	if err != nil {
		return Outcome{}, err
	}
	work, err := filepath.Abs(o.Work)
	if err != nil {
		return Outcome{}, fmt.Errorf("work folder: %w", err)
	}
	p := plan{
		RunID: randomHex(16), Raw: raw, Work: work, Driver: o.Driver, Config: o.Target,
		Workloads: o.Workloads, Tenant: o.Tenant, Seed: o.Seed, CohortID: o.CohortID, Catalogue: catalogue,
	}
	if p.Seed == 0 {
		p.Seed = rand.Int64N(1<<53-2) + 1 // exact in every JSON reader
	}
	for _, c := range cases {
		p.Cases = append(p.Cases, c.ID)
	}
	b, err := json.Marshal(p)
	if err != nil {
		return Outcome{}, fmt.Errorf("encode plan: %w", err)
	}
	if err := writeSynced(filepath.Join(raw, planFile), b); err != nil {
		return Outcome{}, err
	}
	show := newProgress(o.Progress, o.Live, o.Color, len(cases))
	started := time.Now()
	running, childErr := runChild(ctx, o.Executable, raw, show)
	show.close()
	res, err := collect(o, p, raw, running, childErr)
	if err != nil {
		return Outcome{}, fmt.Errorf("collect records: %w", err)
	}
	res.started, res.finished, res.interrupted = started, time.Now(), ctx.Err() != nil
	if err := os.Remove(work); err != nil && !errors.Is(err, os.ErrNotExist) {
		res.broken = "the driver left files in its work folder"
		res.incomplete = append(res.incomplete, res.broken)
	}
	out, err := res.conclude(o, p)
	if err == nil {
		show.summary(out.Report)
	}
	return out, err
}

// runChild runs the child to its end and returns the id of the case that was running when it
// stopped telling, or "".
func runChild(ctx context.Context, executable, raw string, show *progress) (running string, err error) {
	if executable == "" {
		if executable, err = os.Executable(); err != nil {
			return "", fmt.Errorf("find own executable: %w", err)
		}
	}
	log, err := os.Create(filepath.Join(raw, childLog))
	if err != nil {
		return "", fmt.Errorf("create child log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("event pipe: %w", err)
	}
	defer r.Close()
	cmd := exec.CommandContext(ctx, executable)
	cmd.Env = append(os.Environ(), childEnv+"="+filepath.Join(raw, planFile))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	// A group of its own keeps the terminal's Ctrl-C to this process, which passes on one
	// SIGTERM; the parent-death signal lets the child clean up when this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphanSignal}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopBudget
	done := make(chan error, 1)
	go func() {
		// Pdeathsig follows the starting *thread*: keep it until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		w.Close()
		if err == nil {
			err = cmd.Wait()
		}
		done <- err
	}()
	events := bufio.NewScanner(r)
	events.Buffer(nil, 1<<20)
	for events.Scan() {
		var e event
		if json.Unmarshal(events.Bytes(), &e) != nil {
			continue
		}
		switch e.Kind {
		case "start":
			running = e.ID
		case "end":
			running = ""
		}
		show.event(e)
	}
	return running, <-done
}
