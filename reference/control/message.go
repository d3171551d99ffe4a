// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"path"
	"sort"
	"strings"
	"time"
)

// Bounds of a spawn.
const (
	MaxArgs      = 256
	MaxArgBytes  = 64 << 10 // all arguments together
	MaxCwd       = 4096
	MaxStdin     = 1 << 20
	MaxTimeout   = 15 * time.Minute
	MaxOutput    = 4 << 20
	MaxID        = 128
	MaxCounters  = 64
	spawnMin     = 4 + 8 + 1 + 2 + 5 + 2 + 4 // one argument of one byte
	spawnMax     = 4 + 8 + 1 + MaxID + 2 + 4*MaxArgs + MaxArgBytes + 2 + MaxCwd + 4 + MaxStdin
	resultSize   = 1 + 1 + 2 + 5*8
	counterName  = 64
	statsMax     = 2 + MaxCounters*(1+counterName+8)
	flagTimedOut = 1
	flagStdout   = 2
	flagStderr   = 4
	flagProven   = 8
)

// Spawn is one command. There is no environment: the supervisor's is fixed.
type Spawn struct {
	ID        string        // at most 128 bytes; for the audit line only
	Argv      []string      // 1 .. 256, at most 64 KiB in all, no NUL; argv[0] not empty
	Cwd       string        // relative to /workspace without ".."; "" is /workspace itself
	Stdin     []byte        // at most 1 MiB
	Timeout   time.Duration // 1 ms .. 15 min, whole milliseconds (rounded up)
	MaxOutput int64         // 1 .. 4 MiB, shared by both streams; the rest is drained and counted
	Secret    Secret        // for descriptor 3, at most [MaxSecret] bytes; empty for none
}

// Outcome is what the supervisor says of one command. All of it is a claim.
type Outcome struct {
	Stdout, Stderr                   []byte // of Client.Exec only; Client.Stream gives them to its sink
	ExitCode                         int    // -1 when ended by a signal; 126 and 127 as a shell says them
	Signal                           string // "SIGKILL", or ""
	Duration                         time.Duration
	TruncatedStdout, TruncatedStderr bool
	DroppedBytes                     int64 // of both streams
	DescendantsKilled                int64 // processes that outlived the leader or its time and were killed; see package supervisor for what leaves its tree
	CleanupProven                    bool  // the kernel said that no descendant is left
	TimedOut                         bool
}

// Statfs is the workspace as the sandbox's kernel sees it.
type Statfs struct{ Blocks, BlockSize, Inodes uint64 }

// Step says where a spawn failed.
type Step uint8

// The steps.
const (
	StepFork Step = 1 // no process could be made
	StepCwd  Step = 2 // the working directory cannot be entered by the tenant
)

// Check returns what is wrong with s, or nil.
func (s *Spawn) Check() error {
	total := 0
	for _, a := range s.Argv {
		total += len(a)
		if strings.IndexByte(a, 0) >= 0 {
			return fmt.Errorf("%w: NUL in an argument", ErrFrame)
		}
	}
	switch {
	case len(s.ID) > MaxID:
		return fmt.Errorf("%w: invocation id of %d bytes", ErrFrame, len(s.ID))
	case len(s.Argv) < 1 || len(s.Argv) > MaxArgs || total > MaxArgBytes || s.Argv[0] == "":
		return fmt.Errorf("%w: %d arguments of %d bytes", ErrFrame, len(s.Argv), total)
	case len(s.Stdin) > MaxStdin:
		return fmt.Errorf("%w: stdin of %d bytes", ErrFrame, len(s.Stdin))
	case len(s.Secret) > MaxSecret:
		return fmt.Errorf("%w: secret of %d bytes", ErrFrame, len(s.Secret))
	case s.Timeout <= 0 || s.Timeout > MaxTimeout:
		return fmt.Errorf("%w: timeout %v", ErrFrame, s.Timeout)
	case s.MaxOutput < 1 || s.MaxOutput > MaxOutput:
		return fmt.Errorf("%w: output budget %d", ErrFrame, s.MaxOutput)
	}
	return checkCwd(s.Cwd)
}

// checkCwd refuses what could leave /workspace by text. Links are the kernel's to judge, with
// the tenant's authority.
func checkCwd(cwd string) error {
	if len(cwd) > MaxCwd || strings.IndexByte(cwd, 0) >= 0 || path.IsAbs(cwd) {
		return fmt.Errorf("%w: cwd", ErrFrame)
	}
	for part := range strings.SplitSeq(cwd, "/") {
		if part == ".." {
			return fmt.Errorf("%w: cwd leaves the workspace", ErrFrame)
		}
	}
	return nil
}

// Encode returns the payload of an exec request, or of an exec-secret request when there is a
// secret, in a buffer that does not move. Precondition: s.Check() is nil.
func (s *Spawn) Encode() []byte {
	be := binary.BigEndian
	size := 4 + len(s.Secret) + spawnMin - 5 + len(s.ID) + len(s.Cwd) + len(s.Stdin)
	for _, a := range s.Argv {
		size += 4 + len(a)
	}
	b := make([]byte, 0, size)
	if len(s.Secret) > 0 {
		b = append(be.AppendUint32(b, uint32(len(s.Secret))), s.Secret...)
	}
	b = be.AppendUint32(b, uint32((s.Timeout+time.Millisecond-1)/time.Millisecond))
	b = be.AppendUint64(b, uint64(s.MaxOutput))
	b = append(append(b, byte(len(s.ID))), s.ID...)
	b = be.AppendUint16(b, uint16(len(s.Argv)))
	for _, a := range s.Argv {
		b = append(be.AppendUint32(b, uint32(len(a))), a...)
	}
	b = append(be.AppendUint16(b, uint16(len(s.Cwd))), s.Cwd...)
	return append(be.AppendUint32(b, uint32(len(s.Stdin))), s.Stdin...)
}

// Type is the type of the request for s.
func (s *Spawn) Type() Type {
	if len(s.Secret) > 0 {
		return ExecSecret
	}
	return Exec
}

// ParseSpawn decodes the payload of an exec or exec-secret request t. Stdin and Secret alias b.
func ParseSpawn(t Type, b []byte) (Spawn, error) {
	c := cursor{b: b}
	var s Spawn
	if t == ExecSecret {
		if s.Secret = Secret(c.take(c.uint(4))); len(s.Secret) == 0 {
			return s, fmt.Errorf("%w: no secret", ErrFrame)
		}
	}
	s.Timeout = time.Duration(c.uint(4)) * time.Millisecond
	budget := c.uint(8)
	s.ID = string(c.take(c.uint(1)))
	n := c.uint(2)
	if n > MaxArgs {
		return s, fmt.Errorf("%w: %d arguments", ErrFrame, n)
	}
	for range n {
		s.Argv = append(s.Argv, string(c.take(c.uint(4))))
	}
	s.Cwd = string(c.take(c.uint(2)))
	s.Stdin = c.take(c.uint(4))
	if c.bad || len(c.b) != 0 || budget > math.MaxInt64 {
		return s, fmt.Errorf("%w: spawn", ErrFrame)
	}
	s.MaxOutput = int64(budget)
	return s, s.Check()
}

// Summary is an outcome as the frame carries it.
type Summary struct {
	TimedOut, TruncatedStdout, TruncatedStderr, Proven bool
	Signal                                             uint8
	ExitCode                                           uint8
	Duration                                           time.Duration
	Stdout, Stderr, Dropped, Killed                    uint64
}

// Encode returns the payload of an outcome.
func (s *Summary) Encode() []byte {
	var flags byte
	for i, set := range []bool{s.TimedOut, s.TruncatedStdout, s.TruncatedStderr, s.Proven} {
		if set {
			flags |= 1 << i
		}
	}
	be := binary.BigEndian
	b := be.AppendUint16([]byte{flags, s.Signal}, uint16(s.ExitCode))
	b = be.AppendUint64(b, uint64(max(s.Duration, 0)/time.Microsecond))
	for _, n := range []uint64{s.Stdout, s.Stderr, s.Dropped, s.Killed} {
		b = be.AppendUint64(b, n)
	}
	return b
}

// ParseSummary decodes and checks the payload of an outcome.
func ParseSummary(b []byte) (Summary, error) {
	c := cursor{b: b}
	flags, sig, exit := c.uint(1), c.uint(1), c.uint(2)
	micros := c.uint(8)
	s := Summary{
		TimedOut: flags&flagTimedOut != 0, TruncatedStdout: flags&flagStdout != 0,
		TruncatedStderr: flags&flagStderr != 0, Proven: flags&flagProven != 0,
		Signal: uint8(sig), ExitCode: uint8(exit), Duration: time.Duration(micros) * time.Microsecond,
		Stdout: c.uint(8), Stderr: c.uint(8), Dropped: c.uint(8), Killed: c.uint(8),
	}
	truncated := s.TruncatedStdout || s.TruncatedStderr
	switch {
	case c.bad || len(c.b) != 0, flags > 15, sig > 64, exit > 255, sig != 0 && exit != 0,
		micros > math.MaxInt64/1000, s.Dropped > math.MaxInt64, s.Killed > math.MaxInt64,
		truncated != (s.Dropped > 0):
		return s, fmt.Errorf("%w: outcome", ErrFrame)
	}
	return s, nil
}

// EncodeSpawnFailed returns the payload of a spawn failure.
func EncodeSpawnFailed(step Step, errno uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{byte(step)}, errno)
}

// parseSpawnFailed decodes one. An errno of 0 or above 4095 is not the kernel's.
func parseSpawnFailed(b []byte) (Step, uint32, error) {
	c := cursor{b: b}
	step, errno := Step(c.uint(1)), uint32(c.uint(4))
	if c.bad || len(c.b) != 0 || (step != StepFork && step != StepCwd) || errno == 0 || errno > 4095 {
		return 0, 0, fmt.Errorf("%w: spawn failure", ErrFrame)
	}
	return step, errno, nil
}

// Encode returns the payload of a statfs reply.
func (s Statfs) Encode() []byte {
	be := binary.BigEndian
	return be.AppendUint64(be.AppendUint64(be.AppendUint64(nil, s.Blocks), s.BlockSize), s.Inodes)
}

func parseStatfs(b []byte) (Statfs, error) {
	c := cursor{b: b}
	s := Statfs{c.uint(8), c.uint(8), c.uint(8)}
	if c.bad || len(c.b) != 0 {
		return s, fmt.Errorf("%w: statfs", ErrFrame)
	}
	return s, nil
}

// EncodeCounters returns the payload of a stats reply, sorted by name. Names longer than 64
// bytes and counters beyond [MaxCounters] are a programming error and are left out.
func EncodeCounters(m map[string]uint64) []byte {
	names := make([]string, 0, len(m))
	for name := range m {
		if len(name) >= 1 && len(name) <= counterName && len(names) < MaxCounters {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	b := binary.BigEndian.AppendUint16(nil, uint16(len(names)))
	for _, name := range names {
		b = append(append(b, byte(len(name))), name...)
		b = binary.BigEndian.AppendUint64(b, m[name])
	}
	return b
}

func parseCounters(b []byte) (map[string]uint64, error) {
	c := cursor{b: b}
	n := c.uint(2)
	if n > MaxCounters {
		return nil, fmt.Errorf("%w: %d counters", ErrFrame, n)
	}
	m := make(map[string]uint64, n)
	last := ""
	for range n {
		name := string(c.take(c.uint(1)))
		value := c.uint(8)
		if c.bad || name <= last || len(name) > counterName || bytes.ContainsFunc([]byte(name), notCounter) {
			return nil, fmt.Errorf("%w: counter", ErrFrame)
		}
		m[name], last = value, name
	}
	if c.bad || len(c.b) != 0 {
		return nil, fmt.Errorf("%w: counters", ErrFrame)
	}
	return m, nil
}

func notCounter(r rune) bool { return (r < 'a' || r > 'z') && r != '.' && r != '-' }

// cursor consumes big-endian fields; after a short read every answer is zero and bad is set.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n uint64) []byte {
	if c.bad || n > uint64(len(c.b)) {
		c.bad = true
		return nil
	}
	out := c.b[:n:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) uint(size int) (v uint64) {
	for _, x := range c.take(uint64(size)) {
		v = v<<8 | uint64(x)
	}
	return v
}
