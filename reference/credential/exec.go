// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
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
// Its process group is killed when the program has ended, or its time is over. The file must belong
// to root or this process's user, and nobody else may be able to write it.
type Exec struct {
	argv    []string
	timeout time.Duration
}

// ExecRequestVersion is the version of what the program reads.
const ExecRequestVersion = "hallmark.credential-request.v1"

// exitNoPayload is the exit status of a program that has no such payload.
const exitNoPayload = 3

// drainWithin bounds the wait for the end of the output once the program and its group are dead: only
// a process that left the group can hold it open.
const drainWithin = time.Second

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
	// Files, not readers and buffers: os/exec would copy through buffers of its own.
	cmd := &exec.Cmd{Path: p.argv[0], Args: p.argv, Env: []string{}, Dir: "/", Stdin: in, Stdout: w,
		SysProcAttr: &unix.SysProcAttr{Setpgid: true}}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("%w: start program: %w", ErrFailed, err)
	}
	g := &group{leader: cmd.Process.Pid}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.await()
		g.kill()
		out.SetReadDeadline(time.Now().Add(drainWithin))
	}()
	stop := context.AfterFunc(ctx, g.kill)
	payload, readErr := readPayload(out)
	if readErr != nil { // too large, or held open: the program need not go on
		g.kill()
	}
	<-ended
	if !stop() {
		clear(payload)
		readErr = ErrTimedOut
	}
	g.release()
	werr := cmd.Wait()
	if readErr == nil {
		readErr = exitError(werr)
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

// group is a process group whose leader nobody has reaped: until then the number is the group's own.
type group struct {
	leader int
	mu     sync.Mutex
	over   bool // the leader is about to be reaped
}

// await returns when the leader is dead, and leaves it a zombie.
func (g *group) await() {
	for unix.Waitid(unix.P_PID, g.leader, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

func (g *group) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		_ = unix.Kill(-g.leader, unix.SIGKILL) // ESRCH: nobody is left
	}
}

func (g *group) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}
