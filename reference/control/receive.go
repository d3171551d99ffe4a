// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"fmt"
	"strconv"
	"syscall"
)

func (c *Client) readLoop() {
	r := NewReplies(bufio.NewReaderSize(c.rw, HeaderSize+1+OutputMax))
	for {
		f, err := r.Next()
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// dispatch applies one reply. Every frame is hostile: an unknown id, a type that the request
// does not allow, or a byte more than the budget ends the bridge.
func (c *Client) dispatch(f Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[f.Request]
	if k == nil {
		return fmt.Errorf("%w: type %#x for unknown request %d", ErrFrame, byte(f.Type), f.Request)
	}
	switch {
	case k.want == Result && f.Type == Output:
		return k.output(f.Payload)
	case k.want == Result:
		if err := k.end(f); err != nil {
			return err
		}
	case k.want == f.Type:
		k.payload = f.Payload
	case k.want == Looked && f.Type == Refused:
		if err := k.refuse(f.Payload); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: type %#x instead of %#x", ErrFrame, byte(f.Type), byte(k.want))
	}
	delete(c.calls, f.Request)
	close(k.done)
	return nil
}

func (k *call) output(p []byte) error {
	stream, data := p[0], p[1:]
	if int64(len(data)) > k.budget {
		return fmt.Errorf("%w: more output than the budget", ErrFrame)
	}
	if stream != 1 && stream != 2 {
		return fmt.Errorf("%w: stream %d", ErrFrame, stream)
	}
	k.budget -= int64(len(data))
	k.sent[stream-1] += uint64(len(data))
	k.sink(stream, data)
	return nil
}

// end applies the frame that ends an exec.
func (k *call) end(f Frame) error {
	switch f.Type {
	case Result:
		s, err := ParseSummary(f.Payload)
		if err != nil {
			return err
		}
		o := &k.out
		if s.Stdout != k.sent[0] || s.Stderr != k.sent[1] {
			return fmt.Errorf("%w: outcome counts %d and %d bytes, %d and %d came", ErrFrame,
				s.Stdout, s.Stderr, k.sent[0], k.sent[1])
		}
		if s.Dropped > 0 && k.budget > 0 {
			return fmt.Errorf("%w: bytes dropped within the budget", ErrFrame)
		}
		o.ExitCode = int(s.ExitCode)
		if s.Signal != 0 {
			o.ExitCode, o.Signal = -1, signalName(s.Signal)
		}
		o.Duration, o.TimedOut, o.CleanupProven = s.Duration, s.TimedOut, s.Proven
		o.TruncatedStdout, o.TruncatedStderr = s.TruncatedStdout, s.TruncatedStderr
		o.DroppedBytes, o.DescendantsKilled = int64(s.Dropped), int64(s.Killed)
	case SpawnFailed:
		step, errno, err := parseSpawnFailed(f.Payload)
		if err != nil {
			return err
		}
		k.err = &SpawnError{Step: step, Errno: syscall.Errno(errno)}
	case Refused:
		if err := k.refuse(f.Payload); err != nil {
			return err
		}
		if k.sent != [2]uint64{} { // busy means that nothing was started, so that it may be tried again
			return fmt.Errorf("%w: refused as busy after output", ErrFrame)
		}
	case Lost:
		k.err = fmt.Errorf("%w: the keeper of the invocation died", ErrLost)
	default:
		return fmt.Errorf("%w: type %#x ends no exec", ErrFrame, byte(f.Type))
	}
	return nil
}

// refuse applies the payload of a refusal.
func (k *call) refuse(p []byte) error {
	if p[0] != RefusedBusy {
		return fmt.Errorf("%w: refusal %d", ErrFrame, p[0])
	}
	k.err = ErrBusy
	return nil
}

// RefusedBusy is the reason of a refused exec or look.
const RefusedBusy = 1

// linuxSignals are the names of 1..31 on Linux for amd64 and arm64, signal(7). A table, so that
// the worker's view does not depend on the platform it was built for.
var linuxSignals = [...]string{1: "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE",
	"SIGKILL", "SIGUSR1", "SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD", "SIGCONT",
	"SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH",
	"SIGIO", "SIGPWR", "SIGSYS"}

// signalName names a signal of Linux; real-time signals are "SIGRT34" .. "SIGRT64".
func signalName(n uint8) string {
	if int(n) < len(linuxSignals) {
		return linuxSignals[n]
	}
	return "SIGRT" + strconv.Itoa(int(n))
}
