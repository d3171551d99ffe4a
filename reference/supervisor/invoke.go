// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// keeperFD is where PID 1 leaves its end of the channel to a keeper.
const keeperFD = 3

// keeperReady is the first byte on that channel: the keeper has all that it needs to run a command.
const keeperReady = 'r'

// Invoke is a keeper: it runs one invocation after another for PID 1, over descriptor 3, and
// returns when PID 1 closes that. It refuses to run for anybody else.
func Invoke() error {
	if os.Getppid() != 1 || os.Getuid() != 0 {
		return errors.New("invoke is started by the supervisor only")
	}
	if err := harden(warmKeeper); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	f := os.NewFile(keeperFD, "supervisor")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	k := &keeper{conn: conn, pid: os.Getpid(), requests: make(chan control.Frame),
		children: make(chan os.Signal, 1), term: make(chan os.Signal, 16), buf: make([]byte, 1+control.OutputMax)}
	if k.watch, err = newWatch(); err != nil {
		return fmt.Errorf("make poller: %w", err)
	}
	signal.Notify(k.children, unix.SIGCHLD)
	signal.Notify(k.term, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE) // outlived, not obeyed
	if _, err := k.conn.Write([]byte{keeperReady}); err != nil {
		return fmt.Errorf("get ready: %w", err)
	}
	go k.read()
	return k.serve()
}

// serve runs one invocation after another until PID 1 closes the channel.
func (k *keeper) serve() error {
	for f := range k.requests {
		if f.Type != control.Exec && f.Type != control.ExecSecret {
			continue // a cancel that crossed its outcome
		}
		s, err := control.ParseSpawn(f.Type, f.Payload)
		if err != nil {
			clear(f.Payload) // it may hold a secret
			return err
		}
		k.run(f.Request, &s)
	}
	return nil
}

// keeper is the state of Invoke.
type keeper struct {
	conn     net.Conn
	pid      int
	requests chan control.Frame
	children chan os.Signal
	term     chan os.Signal
	watch    *watch
	buf      []byte

	sendMu  sync.Mutex
	current uint64
	out     []byte // used again for each frame
}

func (k *keeper) read() {
	defer close(k.requests)
	for {
		f, err := control.ReadPlainRequest(k.conn)
		if err != nil {
			return
		}
		k.requests <- f
	}
}

// emit sends one frame of the current invocation. PID 1 always reads, so this does not block for
// long; if PID 1 is gone, so is this process.
func (k *keeper) emit(f control.Frame) {
	k.sendMu.Lock()
	defer k.sendMu.Unlock()
	f.Request = k.current
	k.out = control.Append(k.out[:0], f)
	k.conn.Write(k.out)
}

// invocation is one run. All reaping and signalling is done by the goroutine of run.
type invocation struct {
	k       *keeper
	leader  int  // until it executes the command, the launch stage
	ended   bool // leader reaped
	status  unix.WaitStatus
	endedAt time.Time
	zombies map[int]bool // dead, not reaped, when the leader ended: not our doing
	until   time.Time    // when the killing gives up; zero before it begins
	killing bool         // signals of ours are on their way
	killed  uint64       // without the leader
}

func (k *keeper) run(request uint64, s *control.Spawn) {
	defer clear(s.Secret) // however this ends
	k.current = request
	spawnFailed := func(step control.Step, e syscall.Errno) {
		k.emit(control.Frame{Type: control.SpawnFailed, Payload: control.EncodeSpawnFailed(step, uint32(e))})
	}
	p, err := openPipes()
	if err != nil {
		spawnFailed(control.StepFork, errnoOf(err))
		return
	}
	secret, secretFD, err := openSecret(s.Secret)
	if err != nil {
		p.closeOwn()
		p.closeTenant()
		spawnFailed(control.StepFork, errnoOf(err))
		return
	}
	defer secret.end()
	output, err := collect(k.watch, p.outputs, s.MaxOutput, k.emit, k.buf)
	if err != nil {
		p.stdin.Close()
		p.closeTenant()
		if secret != nil {
			unix.Close(secretFD)
		}
		spawnFailed(control.StepFork, errnoOf(err))
		return
	}
	began := time.Now()
	pid, said, err := launch(s, p.tenant, secretFD)
	p.closeTenant()
	if secret != nil {
		unix.Close(secretFD)
	}
	if err != nil {
		p.stdin.Close()
		output.finish()
		spawnFailed(control.StepFork, errnoOf(err))
		return
	}
	defer said.Close()
	go feed(p.stdin, s.Stdin)
	secret.deliver()
	inv := &invocation{k: k, leader: pid, zombies: map[int]bool{}}
	stopped, timedOut, proven := inv.supervise(s.Timeout)
	p.stdin.Close() // ends feed, if it still writes
	secret.end()
	output.finish()
	b := &output.budget
	r := readReport(said)
	if !r.ready && !stopped {
		// It died before any of the tenant's authority was used: at its limit of threads or memory, the Go
		// runtime ends a process.
		r.step, r.errno = control.StepFork, syscall.EAGAIN
	}
	if r.errno != 0 && proven {
		spawnFailed(r.step, r.errno)
		return
	}
	if inv.endedAt.IsZero() {
		inv.endedAt = time.Now()
	}
	sum := control.Summary{
		TimedOut: timedOut, TruncatedStdout: b.dropped[0] > 0, TruncatedStderr: b.dropped[1] > 0, Proven: proven,
		ExitCode: r.exit, Duration: inv.endedAt.Sub(began),
		Stdout: b.kept[0], Stderr: b.kept[1], Dropped: b.dropped[0] + b.dropped[1], Killed: inv.killed,
	}
	switch {
	case r.exit != 0:
	case !inv.ended: // it could not be killed: see proven
		sum.Signal = uint8(unix.SIGKILL)
	case inv.status.Signaled():
		sum.Signal = uint8(inv.status.Signal())
	default:
		sum.ExitCode = uint8(inv.status.ExitStatus())
	}
	k.emit(control.Frame{Type: control.Result, Payload: sum.Encode()})
}

// supervise follows the leader to the proven end of the tree. stopped says that it was ended from here.
func (v *invocation) supervise(timeout time.Duration) (stopped, timedOut, proven bool) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for requests := v.k.requests; !stopped && !v.ended; {
		select {
		case <-v.k.children:
			v.reap()
		case f, ok := <-requests:
			if !ok {
				requests, stopped = nil, true // PID 1 let go: nobody hears the outcome
			} else if f.Type == control.Cancel && f.Request == v.k.current {
				stopped = true
			}
		case <-timer.C:
			stopped, timedOut = true, true
		}
	}
	if stopped {
		v.terminate()
	}
	return stopped, timedOut, v.clear()
}

// terminate asks the leader's process group to end, and gives it [Grace]. One call reaches all of
// the group at once, however many they are; who has left it gets SIGKILL only.
//
// The group stands while it is asked, and again before it is killed: see stand.
func (v *invocation) terminate() {
	v.reap()
	v.killing = true
	v.until = time.Now().Add(Grace + KillWithin)
	v.stand()
	if !v.group(unix.SIGTERM) || !v.group(unix.SIGCONT) {
		return
	}
	grace := time.NewTimer(Grace)
	defer grace.Stop()
	for {
		if v.reap() || v.ended {
			return
		}
		select {
		case <-v.k.children:
		case <-grace.C:
			v.stand()
			v.group(unix.SIGKILL)
			return
		}
	}
}

// stand stops the leader's group until a look finds nothing in it that moves. Only then may it be
// killed, where a sentry lets a fork finish that was under way when its process was signalled: with each
// process of a bomb that dies, another's fork finds room, and the killing never overtakes the forks.
// What stands makes room for nothing.
func (v *invocation) stand() {
	deadline := time.Now().Add(standWithin)
	if !v.until.IsZero() && v.until.Before(deadline) {
		deadline = v.until
	}
	for pause := time.Millisecond; v.group(unix.SIGSTOP); pause = min(2*pause, 100*time.Millisecond) {
		look, err := descendants(v.k.pid, time.Now().Add(lookWithin))
		if err == nil && !slices.ContainsFunc(look, v.moves) || time.Now().After(deadline) {
			return
		}
		time.Sleep(pause) // a stop has an event for the parent only, which is not always this process
	}
}

// moves says whether p is of the leader's group and was not stopped when looked at, by a signal or a
// tracer. Of a process whose first thread has left nobody can tell; it counts as stopped.
func (v *invocation) moves(p stat) bool {
	return p.group == v.leader && !strings.ContainsRune("TtZX", rune(p.state))
}

// group signals the leader's process group while the leader is not reaped: until then the number
// is the group's own, since a session leader cannot leave its group.
func (v *invocation) group(sig unix.Signal) bool {
	return !v.ended && unix.Kill(-v.leader, sig) == nil
}

// clear kills what is left. It returns true when the kernel said ECHILD.
func (v *invocation) clear() bool {
	if v.reap() {
		return true
	}
	v.killing = true
	if v.until.IsZero() {
		v.until = time.Now().Add(KillWithin)
	}
	return tree{root: v.k.pid}.kill(v.until, v.reap)
}

func (v *invocation) end(ws unix.WaitStatus) {
	v.ended, v.status, v.endedAt = true, ws, time.Now()
}

// reap collects every dead child. It returns true when there is no child at all, which, in a
// subreaper, means no descendant: the proof of wait(2), ECHILD. __WALL takes children of any clone(2).
//
// The leader is seen dead before it is reaped, so that its group can be ended while the number is
// still the group's.
func (v *invocation) reap() (none bool) {
	for {
		if !v.ended {
			var info unix.Siginfo
			err := unix.Waitid(unix.P_PID, v.leader, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
			if err == nil && info.Signo != 0 {
				v.endGroup()
				v.collect(v.leader)
				continue
			}
		}
		switch pid, err := v.collect(-1); {
		case err == unix.ECHILD:
			return true
		case err != nil || pid == 0:
			return false
		}
	}
}

// endGroup kills what the leader leaves in its group: first all of it stands still, and is looked at,
// so that the count is exact; then all of it dies, by one call, before the leader's reaping can
// continue it.
func (v *invocation) endGroup() {
	if !v.killing {
		v.group(unix.SIGSTOP)
		look, err := descendants(v.k.pid, time.Now().Add(lookWithin))
		v.killing = err != nil
		for _, p := range look {
			if p.dead() {
				v.zombies[p.pid] = true
			} else {
				v.killing = true
			}
		}
	}
	if v.killing {
		v.stand()
		v.group(unix.SIGKILL)
	}
}

// collect reaps one dead child, if there is one.
func (v *invocation) collect(which int) (pid int, err error) {
	var ws unix.WaitStatus
	for {
		if pid, err = unix.Wait4(which, &ws, unix.WNOHANG|unix.WALL, nil); err != unix.EINTR {
			break
		}
	}
	switch {
	case err != nil || pid == 0:
	case pid == v.leader && !v.ended:
		v.end(ws)
	default:
		if v.ours(ws) && !v.zombies[pid] {
			v.killed++
		}
		delete(v.zombies, pid) // the number may come back
	}
	return pid, err
}

// ours says whether a signal of ours ended a process with status ws. Where the leader's end orphans
// its stopped group, the kernel adds SIGHUP, setpgid(2); some sentries do so as late as the reaping.
func (v *invocation) ours(ws unix.WaitStatus) bool {
	if !ws.Signaled() {
		return false
	}
	switch ws.Signal() {
	case unix.SIGKILL, unix.SIGTERM:
		return v.killing
	case unix.SIGHUP:
		return v.killing || v.ended
	}
	return false
}

// feed writes the command's stdin and closes it. It ends early when the tree is dead.
func feed(w *os.File, b []byte) {
	defer w.Close()
	if len(b) == 0 {
		return
	}
	if _, err := w.Write(b); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, os.ErrClosed) {
		io.WriteString(os.Stderr, "hallmark-supervisor: write stdin: "+err.Error()+"\n")
	}
}
