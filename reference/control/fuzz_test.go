// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// largest bounds what one frame may make either end allocate before it is whole, with what goes with it.
const largest = 4 + MaxSecret + spawnMax + MACSize + 64<<10

// seeds are the vectors of one end, whole, cut and twice, and what follows a MAC that is any.
func seeds(f *testing.F, end string) {
	for _, v := range vectors(f) {
		if v.end == end {
			f.Add(v.bytes)
			f.Add(v.bytes[:len(v.bytes)-1])
			f.Add(append(v.bytes[:len(v.bytes):len(v.bytes)], v.bytes...))
		}
	}
	f.Add([]byte{1, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1})
}

// FuzzRequests feeds the supervisor's end: whatever it accepts, re-encodes to the same bytes, and what it
// allocates is bounded by what came.
func FuzzRequests(f *testing.F) {
	seeds(f, "supervisor")
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, seq := range []uint64{0, 1} { // before and after a request was proven
			var out []byte
			n := allocatedBy(func() {
				k := &Conn{conn: script{bytes.NewReader(b)}, accepted: time.Now(), verify: func(_, _ []byte) bool { return true }, seq: seq}
				for {
					start := len(out)
					first := !k.Proven()
					got, err := k.Receive()
					if err != nil {
						return
					}
					if first && len(got.Payload) > FirstRequestMax {
						t.Fatalf("a first request of %d bytes", len(got.Payload))
					}
					out = Append(out, got)
					if got.Type == Exec || got.Type == ExecSecret {
						spawnSame(t, got.Type, got.Payload)
					}
					if got.Type == Look {
						lookSame(t, got.Payload)
					}
					out = append(out, b[len(out):len(out)+MACSize]...) // any MAC passed
					if !bytes.Equal(out[start:], b[start:len(out)]) {
						t.Fatal("a frame changes")
					}
				}
			})
			if bound := uint64(largest + 64*len(b)); n > bound {
				t.Fatalf("%d bytes were allocated for %d, bound %d", n, len(b), bound)
			}
		}
	})
}

// FuzzUnproven feeds the supervisor's end with what does not know the challenge: nothing is accepted.
func FuzzUnproven(f *testing.F) {
	seeds(f, "supervisor")
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := Accept(script{bytes.NewReader(b)})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := k.Receive(); err == nil || k.Proven() {
			t.Fatalf("accepted %+v", got)
		}
	})
}

// FuzzKeeper feeds the channel from PID 1 to a keeper, which has no MAC.
func FuzzKeeper(f *testing.F) {
	for _, v := range vectors(f) {
		if v.end == "supervisor" {
			f.Add(v.bytes[:max(0, len(v.bytes)-MACSize)])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		var out []byte
		for {
			got, err := ReadPlainRequest(r)
			if err != nil {
				break
			}
			out = Append(out, got)
			if got.Type == Exec || got.Type == ExecSecret {
				spawnSame(t, got.Type, got.Payload)
			}
		}
		if !bytes.HasPrefix(b, out) {
			t.Fatal("a frame changes")
		}
	})
}

// FuzzSpawn feeds the parser of both kinds of spawn.
func FuzzSpawn(f *testing.F) {
	for _, v := range vectors(f) {
		if t := Type(v.bytes[1]); v.end == "supervisor" && (t == Exec || t == ExecSecret) && len(v.bytes) > HeaderSize+MACSize {
			f.Add(t == ExecSecret, v.bytes[HeaderSize:len(v.bytes)-MACSize])
		}
	}
	f.Fuzz(func(t *testing.T, secret bool, b []byte) {
		kind := Exec
		if secret {
			kind = ExecSecret
		}
		n := allocatedBy(func() { spawnSame(t, kind, b) })
		if bound := uint64(64<<10 + 64*len(b)); n > bound {
			t.Fatalf("%d bytes were allocated for %d, bound %d", n, len(b), bound)
		}
	})
}

// FuzzLook feeds the parser of a look.
func FuzzLook(f *testing.F) {
	n := 0
	for _, v := range vectors(f) {
		if v.end == "supervisor" && Type(v.bytes[1]) == Look && len(v.bytes) > HeaderSize+MACSize {
			f.Add(v.bytes[HeaderSize : len(v.bytes)-MACSize])
			n++
		}
	}
	if n == 0 {
		f.Fatal("no seed")
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := allocatedBy(func() { lookSame(t, b) })
		if bound := uint64(16<<10 + 64*len(b)); n > bound {
			t.Fatalf("%d bytes were allocated for %d, bound %d", n, len(b), bound)
		}
	})
}

// lookSame fails when a look is accepted that breaks its bounds, leaves the workspace by text, or re-encodes to
// other bytes.
func lookSame(t *testing.T, b []byte) {
	paths, err := ParseLook(b)
	if err != nil {
		if !errors.Is(err, ErrFrame) {
			t.Fatalf("refused with %v", err)
		}
		return
	}
	if len(paths) < 1 || len(paths) > MaxLooks || !bytes.Equal(encodeLook(paths), b) {
		t.Fatalf("look %q changes", paths)
	}
	for _, p := range paths {
		if !filepath.IsLocal(string(p)) || filepath.Clean(string(p)) != string(p) || len(p) > MaxLookPath {
			t.Fatalf("look at %q", p)
		}
	}
}

// spawnSame fails when a spawn is accepted that breaks its bounds or re-encodes to other bytes.
func spawnSame(t *testing.T, kind Type, b []byte) {
	s, err := ParseSpawn(kind, b)
	if err != nil {
		if !errors.Is(err, ErrFrame) {
			t.Fatalf("refused with %v", err)
		}
		return
	}
	if s.Check() != nil || s.Type() != kind || !bytes.Equal(s.Encode(), b) {
		t.Fatalf("spawn %+v changes", s)
	}
}

// FuzzReplies feeds the worker's end, frame by frame and as a stream to a client, which trusts nothing: a
// sandbox that is the tenant's says what it likes.
func FuzzReplies(f *testing.F) {
	seeds(f, "worker")
	f.Fuzz(func(t *testing.T, b []byte) {
		var out []byte
		n := allocatedBy(func() {
			r := bytes.NewReader(b)
			for {
				got, err := ReadReply(r)
				if err != nil {
					return
				}
				out = Append(out, got)
				if err := reencoded(got); errors.Is(err, errChanges) {
					t.Fatalf("payload of %#x changes", byte(got.Type))
				}
			}
		})
		if !bytes.HasPrefix(b, out) {
			t.Fatal("a frame changes")
		}
		if bound := uint64(largest + 128*len(b)); n > bound {
			t.Fatalf("%d bytes were allocated for %d, bound %d", n, len(b), bound)
		}
		c := &Client{rw: script{bytes.NewReader(b)}, calls: map[uint64]*call{}, done: make(chan struct{})}
		var came [2][]byte
		sink := func(stream uint8, data []byte) { came[stream-1] = append(came[stream-1], data...) }
		k := &call{want: Result, budget: 8, sink: sink, done: make(chan struct{})}
		c.calls[2], c.calls[3] = k, &call{want: StatsReply, done: make(chan struct{})}
		c.calls[4] = &call{want: Looked, done: make(chan struct{})}
		c.readLoop()
		<-k.done
		if n := len(came[0]) + len(came[1]); n > 8 {
			t.Fatalf("%d bytes of output", n)
		}
		if c.Err() == nil {
			t.Fatal("the client outlives its stream")
		}
	})
}

// FuzzConnect feeds the worker's first steps: whatever the other end says, Connect returns, and with a
// client only when hello and pong came first.
func FuzzConnect(f *testing.F) {
	seeds(f, "worker")
	hello := Append(nil, Frame{Type: Hello, Payload: make([]byte, ChallengeSize)})
	pong := Append(nil, Frame{Type: Pong, Request: 1})
	f.Add(append(hello, pong...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Connect(t.Context(), script{bytes.NewReader(b)})
		if (c == nil) != (err != nil) {
			t.Fatalf("%v %v", c, err)
		}
		if err != nil {
			return
		}
		defer c.Close()
		if len(b) < len(hello)+len(pong) || Type(b[1]) != Hello || !bytes.Equal(b[len(hello):len(hello)+len(pong)], pong) {
			t.Fatalf("connected to %x", b)
		}
	})
}

var errChanges = errors.New("payload changes")

// reencoded says what is wrong with a reply's payload: a refusal, or errChanges.
func reencoded(f Frame) error {
	var again []byte
	var err error
	switch f.Type {
	case Result:
		var s Summary
		s, err = ParseSummary(f.Payload)
		again = s.Encode()
	case SpawnFailed:
		var step Step
		var errno uint32
		step, errno, err = parseSpawnFailed(f.Payload)
		again = EncodeSpawnFailed(step, errno)
	case StatFSReply:
		var s Statfs
		s, err = parseStatfs(f.Payload)
		again = s.Encode()
	case StatsReply:
		var m map[string]uint64
		m, err = parseCounters(f.Payload)
		again = EncodeCounters(m)
	case Looked:
		var errno syscall.Errno
		errno, err = parseLooked(f.Payload)
		again = EncodeLooked(errno)
	default:
		return nil
	}
	if err == nil && !bytes.Equal(again, f.Payload) {
		return errChanges
	}
	return err
}

// script is a connection that only reads.
type script struct{ r io.Reader }

func (s script) Read(b []byte) (int, error)       { return s.r.Read(b) }
func (s script) Write(b []byte) (int, error)      { return len(b), nil }
func (s script) Close() error                     { return nil }
func (s script) LocalAddr() net.Addr              { return nil }
func (s script) RemoteAddr() net.Addr             { return nil }
func (s script) SetDeadline(time.Time) error      { return nil }
func (s script) SetReadDeadline(time.Time) error  { return nil }
func (s script) SetWriteDeadline(time.Time) error { return nil }
