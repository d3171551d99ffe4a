// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/hex"
	"io"
	"net"
	"testing"
	"time"
)

func seeds(f *testing.F, requests bool) {
	for _, g := range golden {
		b, err := hex.DecodeString(g.hex)
		if err != nil {
			f.Fatal(err)
		}
		if (g.f.Type < 0x80) == requests {
			f.Add(b)
			f.Add(b[:len(b)-1])
			f.Add(append(b[:len(b):len(b)], b...))
		}
	}
	f.Add([]byte{1, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1})
}

// FuzzRequests feeds the supervisor's end: whatever it accepts, re-encodes to the same bytes.
func FuzzRequests(f *testing.F) {
	seeds(f, true)
	f.Fuzz(func(t *testing.T, b []byte) {
		k := &Conn{conn: script{bytes.NewReader(b)}, accepted: time.Now(), verify: func(_, _ []byte) bool { return true }}
		k.seq = 1 // the larger bounds
		var out []byte
		for {
			start := len(out)
			got, err := k.Receive()
			if err != nil {
				break
			}
			out = Append(out, got)
			if got.Type == Exec || got.Type == ExecSecret {
				if s, err := ParseSpawn(got.Type, got.Payload); err == nil && !bytes.Equal(s.Encode(), got.Payload) {
					t.Fatalf("spawn %+v changes", s)
				}
			}
			out = append(out, b[len(out):len(out)+MACSize]...) // any MAC passed
			if !bytes.Equal(out[start:], b[start:len(out)]) {
				t.Fatal("a frame changes")
			}
		}
	})
}

// FuzzReplies feeds the worker's end, frame by frame and as a stream to a client.
func FuzzReplies(f *testing.F) {
	seeds(f, false)
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		var out []byte
		for {
			got, err := ReadReply(r)
			if err != nil {
				break
			}
			out = Append(out, got)
			reencode(t, got)
		}
		if !bytes.HasPrefix(b, out) {
			t.Fatal("a frame changes")
		}
		c := &Client{rw: script{bytes.NewReader(b)}, calls: map[uint64]*call{}, done: make(chan struct{})}
		var came [2][]byte
		sink := func(stream uint8, data []byte) { came[stream-1] = append(came[stream-1], data...) }
		k := &call{want: Result, budget: 8, sink: sink, done: make(chan struct{})}
		c.calls[2], c.calls[3] = k, &call{want: StatsReply, done: make(chan struct{})}
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

func reencode(t *testing.T, f Frame) {
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
	default:
		return
	}
	if err == nil && !bytes.Equal(again, f.Payload) {
		t.Fatalf("payload of %#x changes", byte(f.Type))
	}
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
