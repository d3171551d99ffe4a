// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Exec is the provider of kind exec: a program that is run once for each call, and can front any
// vault. It gets a fixed argv, an empty environment, / as its directory, and one JSON object on
// standard input: version (hallmark.credential-request.v1), op (lease or dispose) and the members
// of [Request]. For a lease it prints the payload and exits 0; it exits 3 when it has none. For
// dispose only the exit status counts. Standard error goes nowhere.
//
// The program is the first process of a pid namespace of its own. Nothing that it starts can leave
// that, whatever it does with sessions, groups and double forks, and the program's end, by itself, when
// its time is over or because this process died, is the end of all of it, pid_namespaces(7). That takes
// CAP_SYS_ADMIN; without it the program is not run. It sees itself as pid 1, so an orphan of its is its
// own to reap. The file must belong to root or this process's user, and nobody else may be able to
// write it.
type Exec struct {
	argv    []string
	timeout time.Duration
}

// ExecRequestVersion is the version of what the program reads.
const ExecRequestVersion = "hallmark.credential-request.v1"

// exitNoPayload is the exit status of a program that has no such payload.
const exitNoPayload = 3

// drainWithin bounds the wait for the end of the output once the program and all that it started are
// dead: only somebody outside, to whom it was passed, can hold it open.
const drainWithin = time.Second

// killWithin bounds the wait for the end of what was killed: a process in the kernel's hands, on a
// file system that does not answer for example, dies when that lets go of it.
const killWithin = 5 * time.Second

type execRequest struct {
	Version string `json:"version"`
	Op      string `json:"op"`
	Request
}

// NewExec checks the program. timeout bounds each run of it.
func NewExec(argv []string, timeout time.Duration) (*Exec, error) {
	if len(argv) == 0 || !filepath.IsAbs(argv[0]) || timeout <= 0 {
		return nil, errors.New("exec provider needs an absolute program and a bound in time")
	}
	p := &Exec{argv: argv, timeout: timeout}
	return p, p.check()
}

func (p *Exec) check() error {
	var st unix.Stat_t
	if err := unix.Stat(p.argv[0], &st); err != nil {
		return fmt.Errorf("%w: inspect program: %w", ErrFailed, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: program has mode %#o and owner %d", ErrUnsafe, st.Mode, st.Uid)
	}
	return nil
}

// Lease implements [Provider].
func (p *Exec) Lease(ctx context.Context, r Request) ([]byte, error) { return p.run(ctx, "lease", r) }

// Dispose implements [Provider].
func (p *Exec) Dispose(ctx context.Context, r Request) error {
	out, err := p.run(ctx, "dispose", r)
	clear(out)
	return err
}

func (p *Exec) run(ctx context.Context, op string, r Request) ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	text, err := strictjson.Marshal(execRequest{ExecRequestVersion, op, r})
	if err != nil {
		return nil, fmt.Errorf("%w: encode request: %w", ErrFailed, err)
	}
	in, err := filled(append(text, '\n'))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	defer out.Close()
	t, err := p.start(in, w)
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("%w: start program: %w", ErrFailed, err)
	}
	stop := context.AfterFunc(ctx, func() {
		t.kill()
		out.SetReadDeadline(time.Now().Add(killWithin))
	})
	go func() {
		<-t.ended
		out.SetReadDeadline(time.Now().Add(drainWithin))
	}()
	payload, readErr := readPayload(out)
	if readErr != nil { // too large, or held open: the program need not go on
		t.kill()
	}
	gone := t.gone(ctx, readErr != nil)
	if !stop() {
		readErr = ErrTimedOut
	}
	switch {
	case readErr != nil:
	case !gone:
		readErr = ErrTimedOut
	default:
		readErr = exitError(t.err)
	}
	if readErr != nil {
		clear(payload)
		return nil, readErr
	}
	return payload, nil
}

func exitError(err error) error {
	var e *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e) && e.ExitCode() == exitNoPayload:
		return ErrNoPayload
	}
	return ErrFailed
}

// filled returns the reading end of a pipe that holds b: requests are far below what a pipe takes
// without a reader, 64 KiB, pipe(7).
func filled(b []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	defer w.Close()
	w.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := w.Write(b); err != nil {
		r.Close()
		return nil, fmt.Errorf("%w: write request: %w", ErrFailed, err)
	}
	return r, nil
}

// tree is the program with everything that it has started.
type tree struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the kernel has ended all of it
	err   error         // of the program; when ended is closed
}

// start runs the program. The thread that forks waits for its end and does nothing else: the signal of
// PR_SET_PDEATHSIG comes at the death of that thread, prctl(2), which so is the death of this process.
func (p *Exec) start(in, out *os.File) (*tree, error) {
	// Files, not readers and buffers: os/exec would copy through buffers of its own.
	t := &tree{ended: make(chan struct{}), cmd: &exec.Cmd{
		Path: p.argv[0], Args: p.argv, Env: []string{}, Dir: "/", Stdin: in, Stdout: out,
		SysProcAttr: &unix.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL},
	}}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(t.ended)
		err := t.cmd.Start()
		started <- err
		if err == nil {
			t.err = t.cmd.Wait() // the first process of a namespace is not seen dead before the others are
		}
	}()
	return t, <-started
}

func (t *tree) kill() { _ = t.cmd.Process.Kill() } // os.ErrProcessDone: it has ended

// gone waits for the end: as long as ctx lets the program run, and then, or when it is killed already,
// within [killWithin].
func (t *tree) gone(ctx context.Context, killed bool) bool {
	if !killed {
		select {
		case <-t.ended:
			return true
		case <-ctx.Done():
		}
	}
	late := time.NewTimer(killWithin)
	defer late.Stop()
	select {
	case <-t.ended:
		return true
	case <-late.C:
		return false
	}
}
