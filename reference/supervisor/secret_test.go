// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// largest is a secret that does not fit into a pipe.
func largest() control.Secret {
	return control.Secret(bytes.Repeat([]byte("s3cr3t"), control.MaxSecret/6+1)[:control.MaxSecret])
}

func withSecret(b control.Secret, args ...string) control.Spawn {
	s := spawnOf(args...)
	s.Secret = b
	return s
}

func wantBusy(t *testing.T, what string, c *control.Client, s control.Spawn) {
	t.Helper()
	if _, err := c.Exec(t.Context(), s); !errors.Is(err, control.ErrBusy) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestSecretIsDeliveredOnceAndAlone(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		o := must(t, c, withSecret(largest(), "secret", "0"))
		var got struct {
			Secret  []byte
			Home    string
			Tmpfs   bool
			Entries int
			Error   bool
			Mode    int
		}
		if err := json.Unmarshal(o.Stdout, &got); err != nil {
			t.Fatalf("%v: %.200s %s", err, o.Stdout, o.Stderr)
		}
		if !bytes.Equal(got.Secret, largest()) {
			t.Errorf("%d bytes arrived of %d", len(got.Secret), control.MaxSecret)
		}
		if got.Home != secretHome || !got.Tmpfs || got.Entries != 0 || got.Error || got.Mode != 0o700 {
			t.Errorf("home %q, tmpfs %t, %d entries, mode %o", got.Home, got.Tmpfs, got.Entries, got.Mode)
		}
		wantBusy(t, "a command after it", c, spawnOf("exit", "0"))
		wantBusy(t, "another secret after it", c, withSecret(control.Secret("x"), "secret", "0"))
		if n := s.stats(t, c)["invocations"]; n != 1 {
			t.Errorf("%d invocations ran", n)
		}
	})
}

func TestSecretMeetsNoOlderCommand(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		must(t, c, spawnOf("exit", "0"))
		wantBusy(t, "a secret after a command", c, withSecret(control.Secret("x"), "secret", "0"))
		must(t, c, spawnOf("exit", "0")) // the refusal spends nothing
	})
}

func TestSecretProcessIsTheTenant(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		o := must(t, s.connect(t), withSecret(control.Secret("x"), "look"))
		var got struct {
			UID, GID, Groups, NNP int
			Env                   []string
			FDs                   []int
			CapEff, CapPrm        string
		}
		if err := json.Unmarshal(o.Stdout, &got); err != nil {
			t.Fatalf("%v: %s %s", err, o.Stdout, o.Stderr)
		}
		const none = "0000000000000000"
		if got.UID != Tenant || got.GID != Tenant || got.Groups != 0 || got.NNP != 1 || got.CapEff != none || got.CapPrm != none {
			t.Errorf("%+v", got)
		}
		if !slices.Equal(got.FDs, []int{0, 1, 2, 3}) {
			t.Errorf("descriptors %v", got.FDs)
		}
		if want := environment(secretHome); !reflect.DeepEqual(got.Env, want) {
			t.Errorf("environment %q", got.Env)
		}
	})
}

// Who reads late gets a cut frame; nobody waits for him.
func TestSlowReaderOfASecretHoldsNobody(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		ended := make(chan control.Outcome, 1)
		go func() {
			o, err := c.Exec(t.Context(), withSecret(largest(), "secret", fmt.Sprint((deliverWithin+2*time.Second).Milliseconds())))
			if err != nil {
				t.Error(err)
			}
			ended <- o
		}()
		for asked := 0; ; asked++ {
			select {
			case o := <-ended:
				var got struct{ Secret []byte }
				if err := json.Unmarshal(o.Stdout, &got); err != nil || len(got.Secret) == 0 || len(got.Secret) >= control.MaxSecret || !o.CleanupProven {
					t.Errorf("%v: %d bytes, %s", err, len(got.Secret), o.Stderr)
				}
				if asked < 10 {
					t.Errorf("the supervisor answered %d times meanwhile", asked)
				}
				return
			default:
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				err := c.Ping(ctx)
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	})
}

// On this kernel every descriptor of every process can be seen: the pipe's ends are in one place.
func TestSecretPipeIsNowhereElse(t *testing.T) {
	s := hostSandbox(t)
	c := s.connect(t)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := c.Exec(ctx, withSecret(control.Secret("x"), "secret", "0", "3600000"))
		ended <- err
	}()
	var pipe []byte
	for deadline := time.Now().Add(30 * time.Second); pipe == nil; {
		var err error
		if pipe, err = os.ReadFile(filepath.Join(s.workspace, "held")); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if !strings.HasPrefix(string(pipe), "pipe:[") {
		t.Fatalf("descriptor 3 is %q", pipe)
	}
	wantBusy(t, "a command beside it", c, spawnOf("exit", "0"))
	var holders []string
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil && link == string(pipe) {
			holders = append(holders, filepath.Base(fd))
		}
	}
	if !slices.Equal(holders, []string{"3"}) {
		t.Errorf("the pipe is open as descriptors %q", holders)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestKeeperZeroesTheSecret(t *testing.T) {
	for _, read := range []bool{true, false} {
		b := largest()
		p, fd, err := openSecret(b)
		if err != nil {
			t.Fatal(err)
		}
		r := os.NewFile(uintptr(fd), "reader")
		p.deliver()
		if read {
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, largest()) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}
		p.end()
		p.end()
		if !bytes.Equal(b, make([]byte, len(b))) {
			t.Errorf("read %t: the secret is not zeroed", read)
		}
		r.Close()
	}
	var none *secretPipe
	none.deliver()
	none.end()
}

// PID 1 and its keepers hold secrets for a moment; the leader, which inherits from them, for longer.
func TestNobodyInASandboxDumpsACore(t *testing.T) {
	s := hostSandbox(t)
	s.connect(t)
	look, err := descendants(s.pid, time.Now().Add(time.Minute))
	if err != nil || len(look) < idleKeepers {
		t.Fatalf("%d processes below PID 1, %v", len(look), err)
	}
	pids := []int{s.pid}
	for _, p := range look {
		pids = append(pids, p.pid)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "Max core file size")
		if f := strings.Fields(rest); len(f) < 2 || f[0] != "0" || f[1] != "0" {
			t.Errorf("process %d may dump a core: %.60q", pid, rest)
		}
	}
}

// A secret is zeroed however a keeper ends with it: also where it came to no pipe, or was no spawn at all.
func TestSecretOfACommandThatDidNotStartIsZeroed(t *testing.T) {
	whole := withSecret(largest(), "exit", "0")
	payload := whole.Encode()
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, k *keeper, b []byte)
		b    []byte
	}{
		{"no spawn", func(t *testing.T, k *keeper, b []byte) {
			go func() {
				k.requests <- control.Frame{Type: control.ExecSecret, Request: 1, Payload: b}
				close(k.requests)
			}()
			if err := k.serve(); !errors.Is(err, control.ErrFrame) {
				t.Errorf("%v", err)
			}
		}, append(bytes.Clone(payload), 0)},
		{"no descriptor is left", func(t *testing.T, k *keeper, b []byte) {
			s, err := control.ParseSpawn(control.ExecSecret, b)
			if err != nil {
				t.Fatal(err)
			}
			var old unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
				t.Fatal(err)
			}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: old.Max}); err != nil {
				t.Fatal(err)
			}
			defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
			k.run(1, &s)
		}, bytes.Clone(payload)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			go io.Copy(io.Discard, theirs) // ends with ours
			tt.run(t, &keeper{conn: ours, requests: make(chan control.Frame)}, tt.b)
			if bytes.Contains(tt.b, []byte("s3cr3t")) {
				t.Error("the secret is still there")
			}
		})
	}
}
