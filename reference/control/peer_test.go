// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const senderEnv = "HALLMARK_TEST_SENDER"

func TestMain(m *testing.M) {
	if path := os.Getenv(senderEnv); path != "" {
		if err := queueAndExit(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// queueAndExit is a process that queues whole requests before anybody accepts, then ends.
func queueAndExit(path string) error {
	c, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	var guess [ChallengeSize]byte
	b := AppendRequest(nil, &guess, 0, Frame{Type: Ping, Request: 1})
	b = AppendRequest(b, &guess, 1, Frame{Type: Exec, Request: 2, Payload: spawn("x").Encode()})
	_, err = c.Write(b)
	return err
}

func spawn(argv ...string) *Spawn {
	return &Spawn{Argv: argv, Timeout: time.Second, MaxOutput: 8}
}

// queued listens, lets a process queue its requests and end, and only then accepts: the barrier.
func queued(t *testing.T) net.Conn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), senderEnv+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestQueuedRequestOfDeadPeerIsRefused(t *testing.T) {
	t.Run("by the hello", func(t *testing.T) {
		if _, err := Accept(queued(t)); err == nil {
			t.Error("a dead peer took the hello")
		}
	})
	t.Run("by the MAC alone", func(t *testing.T) { // were the hello to leave without an error
		k, err := Accept(deaf{queued(t)})
		if err != nil {
			t.Fatal(err)
		}
		if f, err := k.Receive(); !errors.Is(err, ErrMAC) || k.Proven() {
			t.Errorf("%+v %v", f, err)
		}
	})
	t.Run("without the check it is executed", func(t *testing.T) {
		k, err := Accept(deaf{queued(t)})
		if err != nil {
			t.Fatal(err)
		}
		k.verify = func(_, _ []byte) bool { return true } // the defect, here only
		for _, want := range []Type{Ping, Exec} {
			if f, err := k.Receive(); err != nil || f.Type != want {
				t.Fatalf("%+v %v", f, err)
			}
		}
	})
}

// deaf swallows what is written.
type deaf struct{ net.Conn }

func (deaf) Write(b []byte) (int, error) { return len(b), nil }

func TestReplayIsRefused(t *testing.T) {
	server, client := net.Pipe()
	defer client.Close()
	got := make(chan error, 2)
	go func() {
		k, err := Accept(server)
		if err != nil {
			got <- err
			return
		}
		for range 2 {
			_, err := k.Receive()
			got <- err
		}
		server.Close()
	}()
	hello, err := ReadReply(client)
	if err != nil {
		t.Fatal(err)
	}
	ping := AppendRequest(nil, (*[ChallengeSize]byte)(hello.Payload), 0, Frame{Type: Ping, Request: 1})
	for i, want := range []error{nil, ErrMAC} {
		if _, err := client.Write(ping); err != nil {
			t.Fatal(err)
		}
		if err := <-got; !errors.Is(err, want) {
			t.Errorf("time %d: %v", i, err)
		}
	}
}

func TestChallengesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		server, client := net.Pipe()
		go Accept(server)
		hello, err := ReadReply(client)
		if err != nil || seen[string(hello.Payload)] {
			t.Fatalf("%v", err)
		}
		seen[string(hello.Payload)] = true
		client.Close()
	}
}
