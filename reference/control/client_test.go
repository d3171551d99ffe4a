// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// fake connects a client to a supervisor whose answers the test writes. answer gets every
// request after the first ping.
func fake(t *testing.T, answer func(k *Conn, f Frame)) *Client {
	t.Helper()
	server, client := net.Pipe()
	go func() {
		k, err := Accept(server)
		if err != nil {
			return
		}
		for {
			fresh := !k.Proven()
			f, err := k.Receive()
			switch {
			case err != nil:
				return
			case fresh:
				k.Send(Frame{Type: Pong, Request: f.Request})
			default:
				answer(k, f)
			}
		}
	}()
	c, err := Connect(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); server.Close() })
	return c
}

func TestExecOutcome(t *testing.T) {
	c := fake(t, func(k *Conn, f Frame) {
		for _, part := range []string{"\x01ab", "\x02\xff", "\x01c"} {
			k.Send(Frame{Output, f.Request, []byte(part)})
		}
		s := Summary{TimedOut: true, TruncatedStdout: true, Proven: true, Signal: 15, Duration: 2 * time.Second, Stdout: 3, Stderr: 1, Dropped: 9, Killed: 2}
		k.Send(Frame{Result, f.Request, s.Encode()})
	})
	s := spawn("x")
	s.MaxOutput = 4
	o, err := c.Exec(t.Context(), *s)
	if err != nil {
		t.Fatal(err)
	}
	if string(o.Stdout) != "abc" || string(o.Stderr) != "\xff" || o.ExitCode != -1 || o.Signal != "SIGTERM" || o.Duration != 2*time.Second ||
		!o.TimedOut || !o.TruncatedStdout || o.TruncatedStderr || o.DroppedBytes != 9 || o.DescendantsKilled != 2 || !o.CleanupProven {
		t.Errorf("%+v", o)
	}
}

func TestExecFailures(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reply Frame
		check func(error) bool
		lives bool
	}{
		{"busy", Frame{Refused, 0, []byte{RefusedBusy}}, func(err error) bool { return errors.Is(err, ErrBusy) }, true},
		{"spawn", Frame{SpawnFailed, 0, EncodeSpawnFailed(StepFork, uint32(syscall.EAGAIN))}, func(err error) bool {
			var e *SpawnError
			return errors.As(err, &e) && e.Step == StepFork && errors.Is(err, syscall.EAGAIN)
		}, true},
		{"keeper lost", Frame{Lost, 0, nil}, func(err error) bool { return errors.Is(err, ErrLost) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := fake(t, func(k *Conn, f Frame) {
				r := tt.reply
				r.Request = f.Request
				k.Send(r)
			})
			if _, err := c.Exec(t.Context(), *spawn("x")); !tt.check(err) {
				t.Errorf("%v", err)
			}
			if (c.Err() == nil) != tt.lives {
				t.Errorf("bridge: %v", c.Err())
			}
		})
	}
}

// Every lie in form loses the bridge.
func TestHostileSandbox(t *testing.T) {
	proven := Summary{Proven: true}
	for _, tt := range []struct {
		name string
		send func(k *Conn, id uint64)
	}{
		{"more than the budget", func(k *Conn, id uint64) { k.Send(Frame{Output, id, []byte("\x01123456789")}) }},
		{"more in parts", func(k *Conn, id uint64) {
			k.Send(Frame{Output, id, []byte("\x0112345678")})
			k.Send(Frame{Output, id, []byte("\x029")})
		}},
		{"stream 3", func(k *Conn, id uint64) { k.Send(Frame{Output, id, []byte("\x03x")}) }},
		{"unknown request", func(k *Conn, id uint64) { k.Send(Frame{Result, id + 9, proven.Encode()}) }},
		{"second hello", func(k *Conn, id uint64) { k.Send(Frame{Hello, 0, make([]byte, ChallengeSize)}) }},
		{"pong for exec", func(k *Conn, id uint64) { k.Send(Frame{Pong, id, nil}) }},
		{"counts that do not add up", func(k *Conn, id uint64) { k.Send(Frame{Result, id, (&Summary{Stdout: 1}).Encode()}) }},
		{"dropped within the budget", func(k *Conn, id uint64) {
			k.Send(Frame{Result, id, (&Summary{TruncatedStdout: true, Dropped: 1}).Encode()})
		}},
		{"truncated and nothing dropped", func(k *Conn, id uint64) { k.Send(Frame{Result, id, (&Summary{TruncatedStdout: true}).Encode()}) }},
		{"unknown refusal", func(k *Conn, id uint64) { k.Send(Frame{Refused, id, []byte{7}}) }},
		{"busy after output", func(k *Conn, id uint64) {
			k.Send(Frame{Output, id, []byte("\x01x")})
			k.Send(Frame{Refused, id, []byte{RefusedBusy}})
		}},
		{"errno 0", func(k *Conn, id uint64) { k.Send(Frame{SpawnFailed, id, EncodeSpawnFailed(StepFork, 0)}) }},
		{"two outcomes", func(k *Conn, id uint64) {
			k.Send(Frame{Result, id, proven.Encode()})
			k.Send(Frame{Result, id, proven.Encode()})
		}},
		{"huge", func(k *Conn, id uint64) {
			k.conn.Write([]byte{1, byte(Output), 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 2})
		}},
		{"end of stream", func(k *Conn, id uint64) { k.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := fake(t, func(k *Conn, f Frame) { tt.send(k, f.Request) })
			o, err := c.Exec(t.Context(), *spawn("x"))
			if err != nil && !errors.Is(err, ErrLost) || err == nil && tt.name != "two outcomes" {
				t.Errorf("%+v %v", o, err)
			}
			select {
			case <-c.Done():
			case <-time.After(5 * time.Second):
				t.Fatal("the bridge lives on")
			}
			if err := c.Ping(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(c.Err(), ErrLost) {
				t.Errorf("%v %v", err, c.Err())
			}
		})
	}
}

func TestCancelReturnsOutcomeAndError(t *testing.T) {
	var exec uint64
	c := fake(t, func(k *Conn, f Frame) {
		switch f.Type {
		case Exec:
			exec = f.Request
		case Cancel:
			if f.Request == exec {
				k.Send(Frame{Result, exec, (&Summary{Signal: 9, Proven: true}).Encode()})
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	o, err := c.Exec(ctx, *spawn("x"))
	if !errors.Is(err, context.DeadlineExceeded) || o.Signal != "SIGKILL" || !o.CleanupProven {
		t.Errorf("%+v %v", o, err)
	}
	if c.Err() != nil {
		t.Error(c.Err())
	}
}

// With the caller gone, the outcome says no more and no less of the cleanup than what was proven.
func TestCancelCarriesTheProof(t *testing.T) {
	for _, tt := range []struct {
		name   string
		end    Frame
		proven bool
		lost   bool
	}{
		{"proven", Frame{Type: Result, Payload: (&Summary{Signal: 9, Proven: true}).Encode()}, true, false},
		{"not proven", Frame{Type: Result, Payload: (&Summary{Signal: 9}).Encode()}, false, false},
		{"keeper lost", Frame{Type: Lost}, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			c := fake(t, func(k *Conn, f Frame) {
				if f.Type == Exec {
					cancel()
					return
				}
				tt.end.Request = f.Request
				k.Send(tt.end)
			})
			o, err := c.Exec(ctx, *spawn("x"))
			if o.CleanupProven != tt.proven || errors.Is(err, ErrLost) != tt.lost || errors.Is(err, context.Canceled) == tt.lost {
				t.Errorf("%+v %v", o, err)
			}
		})
	}
	t.Run("before anything was sent", func(t *testing.T) {
		c := fake(t, func(k *Conn, f Frame) { t.Errorf("sent %#x", byte(f.Type)) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if o, err := c.Exec(ctx, *spawn("x")); !errors.Is(err, context.Canceled) || !o.CleanupProven {
			t.Errorf("%+v %v", o, err)
		}
	})
}

func TestConcurrentExecsKeepApart(t *testing.T) {
	c := fake(t, func(k *Conn, f Frame) {
		s, err := ParseSpawn(f.Type, f.Payload)
		if err != nil {
			return
		}
		go func() { // in any order
			k.Send(Frame{Output, f.Request, append([]byte{1}, s.Argv[0]...)})
			k.Send(Frame{Result, f.Request, (&Summary{Stdout: uint64(len(s.Argv[0]))}).Encode()})
		}()
	})
	errs := make(chan error, 20)
	for i := range cap(errs) {
		go func() {
			arg := string(bytes.Repeat([]byte{byte('a' + i)}, 3))
			o, err := c.Exec(t.Context(), *spawn(arg))
			if err == nil && string(o.Stdout) != arg {
				err = errors.New("got " + string(o.Stdout))
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestConnectRefusesAndEnds(t *testing.T) {
	t.Run("no hello", func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := Connect(ctx, client); !errors.Is(err, ErrLost) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if _, err := client.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("left open: %v", err)
		}
	})
	t.Run("another frame", func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		go server.Write(Append(nil, Frame{Pong, 1, nil}))
		if _, err := Connect(t.Context(), client); !errors.Is(err, ErrFrame) {
			t.Errorf("%v", err)
		}
	})
	t.Run("hello and silence", func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		go server.Write(Append(nil, Frame{Hello, 0, make([]byte, ChallengeSize)}))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := Connect(ctx, client); err == nil {
			t.Error("connected")
		}
	})
}

// TestStreamGivesOutputAsItArrives: each part is given before the next one is sent, nothing of it
// is kept, and nothing comes after the call has ended.
func TestStreamGivesOutputAsItArrives(t *testing.T) {
	given := make(chan string)
	next := make(chan struct{})
	c := fake(t, func(k *Conn, f Frame) {
		go func() {
			for _, part := range []string{"\x01ab", "\x02\xff", "\x01c"} {
				k.Send(Frame{Output, f.Request, []byte(part)})
				<-next
			}
			k.Send(Frame{Result, f.Request, (&Summary{Proven: true, Stdout: 3, Stderr: 1}).Encode()})
		}()
	})
	s := spawn("x")
	s.MaxOutput = 4
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		o, err := c.Stream(t.Context(), *s, func(stream uint8, data []byte) { given <- string('0'+stream) + string(data) })
		if err != nil || !o.CleanupProven || o.Stdout != nil || o.Stderr != nil {
			t.Errorf("%+v %v", o, err)
		}
	}()
	for _, want := range []string{"1ab", "2\xff", "1c"} {
		if got := <-given; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		next <- struct{}{}
	}
	<-ended
}

// Frames of output share one buffer, and what outlives its frame does not: a reply that is kept is not
// changed by the output that follows it.
func TestRepliesShareTheBufferOfOutput(t *testing.T) {
	var b []byte
	for _, f := range []Frame{
		{Type: Output, Request: 1, Payload: []byte("\x01first")}, {Type: StatFSReply, Request: 2, Payload: Statfs{1, 2, 3}.Encode()},
		{Type: Output, Request: 1, Payload: []byte("\x02second")},
	} {
		b = Append(b, f)
	}
	r := NewReplies(bytes.NewReader(b))
	var got []Frame
	for range 3 {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, f)
	}
	if s, err := parseStatfs(got[1].Payload); err != nil || s != (Statfs{1, 2, 3}) {
		t.Errorf("%+v, %v", s, err)
	}
	if string(got[2].Payload) != "\x02second" || &got[0].Payload[0] != &got[2].Payload[0] {
		t.Errorf("%q after %q: not the same buffer", got[2].Payload, got[0].Payload)
	}
}
