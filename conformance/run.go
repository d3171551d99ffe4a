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
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// stopBudget bounds an interrupted run: one case's clean-up and the target's end. Processes that
// take longer are killed; what they leave, the driver sweeps at its next start.
const stopBudget = returnGrace + cleanupBudget + closeTimeout

// Outcome is what a run came to.
type Outcome struct {
	RunID       string
	Interrupted bool
	Report      Report
	Faults      []string // of the run as a whole, whatever its cases came to
	// Bundle is the folder of the signed bundle, or "" when none was signed; Unsigned says why.
	Bundle   string
	Unsigned string
}

// Run executes the selected cases in processes of this program and reports them. Whatever the
// cases come to is an Outcome; an error means that the run itself could not be done. When ctx
// ends, the processes clean up within a bound and nothing is signed.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := o.check(); err != nil {
		return Outcome{}, fmt.Errorf("run options: %w", err)
	}
	cases, err := o.selected()
	if err != nil {
		return Outcome{}, fmt.Errorf("select cases: %w", err)
	}
	catalogue, err := o.Suite.CatalogueDigest()
	if err != nil {
		return Outcome{}, fmt.Errorf("catalogue: %w", err)
	}
	for _, c := range cases { // an unproven case that was named has a row, in a run that is incomplete anyway
		if !slices.ContainsFunc(o.Suite.Cases, func(k Case) bool { return k.ID == c.ID }) {
			o.Suite.Cases = append(slices.Clip(o.Suite.Cases), c)
		}
	}
	lock, err := lockOut(o.Out)
	if err != nil {
		return Outcome{}, err
	}
	defer lock.Close()
	if err := sweepTemp(); err != nil {
		return Outcome{}, fmt.Errorf("sweep what a killed run left: %w", err)
	}
	p, work, err := o.prepare()
	if err != nil {
		return Outcome{}, err
	}
	defer work.Close()
	defer os.RemoveAll(p.Shared)
	p.Catalogue = catalogue
	for _, c := range cases {
		p.Cases = append(p.Cases, c.ID)
	}
	if err := p.write(); err != nil {
		return Outcome{}, err
	}
	show := newProgress(o.Progress, o.Live, o.Color, len(cases))
	started := time.Now()
	running, childErr := runChild(ctx, o.Executable, p, []*os.File{lock, work}, show)
	show.close()
	if err := sweepTemp(); err != nil { // of a process that has died
		childErr = errors.Join(childErr, err)
	}
	res, err := collect(o, p, running, childErr)
	if err != nil {
		return Outcome{}, fmt.Errorf("collect records: %w", err)
	}
	res.started, res.finished = started, time.Now()
	res.interrupted = res.interrupted || ctx.Err() != nil
	if err := target.RemoveRun(p.Work); err != nil {
		res.broken = "the driver left files in its work folder"
		res.incomplete = append(res.incomplete, res.broken)
	}
	out, err := res.conclude(o, p)
	if err == nil {
		show.summary(out.Report)
	}
	return out, err
}

// write puts the plan where the processes of the run find it.
func (p plan) write() error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode plan: %w", err)
	}
	return writeSynced(filepath.Join(p.Raw, planFile), b)
}

// prepare replaces what an earlier run left in Out, makes the run's folders and draws what is
// random about it. The file is the lock on the work folder.
func (o Options) prepare() (plan, *os.File, error) {
	for _, name := range []string{"raw", "bundle", reportFile, htmlFile, junitFile} {
		if err := os.RemoveAll(filepath.Join(o.Out, name)); err != nil {
			return plan{}, nil, fmt.Errorf("clear output folder: %w", err)
		}
	}
	raw, err := filepath.Abs(filepath.Join(o.Out, "raw"))
	if err != nil {
		return plan{}, nil, fmt.Errorf("output folder: %w", err)
	}
	work, err := filepath.Abs(o.Work)
	if err != nil {
		return plan{}, nil, fmt.Errorf("work folder: %w", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return plan{}, nil, fmt.Errorf("working directory: %w", err)
	}
	p := plan{
		RunID: randomHex(16), Raw: raw, Shared: filepath.Join(raw, sharedDir), Beside: o.Beside, Work: work, Dir: dir, Path: os.Getenv("PATH"),
		Driver: o.Driver, Config: o.Target, Workloads: o.Workloads, Tenant: o.Tenant, Seed: o.Seed, Procs: max(1, o.Procs), Unprobed: o.WithoutProbes, Unarmed: o.WithoutArming, CohortID: o.CohortID, TimeScale: o.TimeScale,
		Arguments: o.Arguments,
	}
	if p.Seed == 0 {
		p.Seed = rand.Int64N(1<<53-2) + 1 // exact in every JSON reader
	}
	for _, dir := range []string{filepath.Join(raw, blobsDir), p.Shared} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return plan{}, nil, fmt.Errorf("make output folder: %w", err)
		}
	}
	if entries, err := os.ReadDir(work); err == nil && len(entries) > 0 {
		return plan{}, nil, fmt.Errorf("the work folder %s is not empty", o.Work)
	}
	// Others may walk through: a tenant of a driver without containers reaches its workspace below.
	if err := errors.Join(os.MkdirAll(work, 0o711), os.Chmod(work, 0o711)); err != nil {
		return plan{}, nil, fmt.Errorf("make work folder: %w", err)
	}
	// Once: the kernel names what is mounted below by a path without links.
	if p.Work, err = filepath.EvalSymlinks(work); err != nil {
		return plan{}, nil, fmt.Errorf("work folder: %w", err)
	}
	lock, err := target.LockRun(p.Work)
	return p, lock, err
}

// Descriptors that a child finds open beside the standard ones. They must not reach the programs
// that a suite process starts; a launcher lets them through to the suite processes.
const (
	fdEvents = 3 + iota // one JSON line per event, at most PIPE_BUF bytes each
	fdLock              // the lock on the output folder, held as long as anybody writes there
	fdWork              // the lock on the work folder, likewise
	fdLife              // ends when whoever started this process ends, or wants it to stop
	fdLog               // the log of all processes
)

// runChild runs the child, and what it starts, to the end. It returns the ids of the cases that
// were running when the processes stopped telling.
func runChild(ctx context.Context, executable string, p plan, locks []*os.File, show *progress) (running []string, err error) {
	if executable == "" {
		if executable, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find own executable: %w", err)
		}
	}
	log, err := os.Create(filepath.Join(p.Raw, childLog))
	if err != nil {
		return nil, fmt.Errorf("create child log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("event pipe: %w", err)
	}
	defer r.Close()
	life, hold, err := os.Pipe()
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("life line: %w", err)
	}
	defer hold.Close() // by the kernel, too, when this process is killed: then the child cleans up
	cmd := exec.Command(executable, p.Arguments...)
	cmd.Env = append(os.Environ(), childEnv+"="+filepath.Join(p.Raw, planFile))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w, locks[0], locks[1], life, log}
	// A group of its own keeps the terminal's Ctrl-C to this process, which passes it on once, and
	// names all processes of the run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	w.Close()
	life.Close()
	if err != nil {
		return nil, err
	}
	group := &group{leader: cmd.Process.Pid, ended: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { hold.Close(); group.expire() })
	go func() { group.leaderEnds(); group.expire() }()
	running = follow(r, show)
	stop()
	group.end()
	return running, cmd.Wait()
}

// group is the process group of one run. Its id is ours until its leader has been waited for.
type group struct {
	leader int
	ended  chan struct{}
	mu     sync.Mutex
}

// leaderEnds returns when the leader has ended. It leaves it to be waited for.
func (g *group) leaderEnds() {
	ignoringEINTR(func() error { return unix.Waitid(unix.P_PID, g.leader, nil, unix.WEXITED|unix.WNOWAIT, nil) })
}

// expire kills whoever of the group is left after the bound.
func (g *group) expire() {
	select {
	case <-g.ended:
		return
	case <-time.After(stopBudget):
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.ended:
	default:
		syscall.Kill(-g.leader, syscall.SIGKILL)
	}
}

func (g *group) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.ended)
}

// follow shows the events until the last process that could tell any has ended.
func follow(r *os.File, show *progress) []string {
	running := map[string]bool{}
	events := bufio.NewScanner(r)
	events.Buffer(nil, 1<<20)
	for events.Scan() {
		var e event
		if json.Unmarshal(events.Bytes(), &e) != nil {
			continue
		}
		switch e.Kind {
		case "start":
			running[e.ID] = true
		case "end":
			delete(running, e.ID)
		}
		show.event(e)
	}
	var ids []string
	for id := range running {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
