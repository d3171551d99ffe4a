// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

// fakeEnv makes this test's own program stand in for the emulator and its guest: it speaks on descriptor 3.
const fakeEnv = "HALLMARK_TEST_GUEST"

func TestMain(m *testing.M) {
	if mode := os.Getenv(fakeEnv); mode != "" {
		fakeGuest(mode)
		return
	}
	os.Exit(m.Run())
}

// fakeGuest behaves as mode says, to the first command that it is told to run.
func fakeGuest(mode string) {
	fmt.Println("fake guest: " + mode)
	c := link.New(os.NewFile(3, "control"))
	greet := func() { c.WriteJSON(link.Hello, link.Greeting{Kernel: "fake", Uptime: 1}) }
	switch mode {
	case "mute":
		select {}
	case "ends":
		return
	case "foreign":
		os.NewFile(3, "control").WriteString("SSH-2.0-x\r\n")
		select {}
	case "wrong greeting":
		c.Write(link.Done, nil)
		select {}
	}
	greet()
	for {
		kind, body, err := c.Read()
		if err != nil {
			return
		}
		switch kind {
		case link.Run:
			var cmd link.Command
			json.Unmarshal(body, &cmd)
			switch mode {
			case "falls silent":
				c.Stream(link.Stdout).Write([]byte("begun"))
				select {}
			case "beats for ever":
				for {
					c.Write(link.Beat, nil)
					time.Sleep(10 * time.Millisecond)
				}
			case "dies":
				return
			case "out of step":
				c.Write(link.Data, nil)
			default:
				c.Stream(link.Stdout).Write([]byte(strings.Join(cmd.Argv, " ")))
				c.Stream(link.Stderr).Write([]byte("e"))
				c.Write(link.Beat, nil)
				c.WriteJSON(link.Exit, link.Result{Code: 7})
			}
		case link.Get:
			if mode == "fills" {
				t := tar.NewWriter(c.Stream(link.Data))
				t.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 1 << 40, Mode: 0o644})
				io.Copy(t, zeros{})
			}
			c.Write(link.Done, []byte("no such \x1b[31mfile"))
		case link.Put:
			if mode == "takes nothing" {
				select {}
			}
		case link.End:
			c.Write(link.Done, nil)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func fake(t *testing.T, mode string, cfg Config) (*Machine, string, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fakeEnv+"="+mode)
	m, err := launch(t.Context(), cmd, func() error { return os.RemoveAll(tmp) }, cfg)
	if m != nil {
		t.Cleanup(func() { m.Close() })
	}
	return m, tmp, err
}

func gone(t *testing.T, m *Machine, tmp string) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(m.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is there: %v", m.Pid, err)
	}
	if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of the run: %v", err)
	}
}

func TestOperations(t *testing.T) {
	log := filepath.Join(t.TempDir(), "out", "console.log")
	m, tmp, err := fake(t, "good", Config{Console: log})
	if err != nil {
		t.Fatal(err)
	}
	if m.Greeting.Kernel != "fake" {
		t.Errorf("%+v", m.Greeting)
	}
	var stdout, stderr bytes.Buffer
	res, err := m.Run(t.Context(), link.Command{Argv: []string{"a", "b"}}, time.Minute, &stdout, &stderr)
	if err != nil || res.Code != 7 || stdout.String() != "a b" || stderr.String() != "e" {
		t.Errorf("%v %+v %q %q", err, res, stdout.String(), stderr.String())
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, 3*link.MaxFrame), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Put(t.Context(), "/x", File{From: big}); err != nil {
		t.Error(err)
	}
	// What the guest says went wrong ends nothing, and cannot steer a terminal.
	if err := m.Get(t.Context(), t.TempDir(), 1000, "/x"); err == nil || err.Error() != "the guest: no such [31mfile" {
		t.Errorf("%q", err)
	}
	if _, err := m.Run(t.Context(), link.Command{Argv: []string{"a"}}, time.Minute, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
	if m.CPU() != 0 {
		t.Errorf("CPU time of a guest that runs: %s", m.CPU())
	}
	gone(t, m, tmp)
	if m.CPU() <= 0 {
		t.Errorf("CPU time of a guest that has ended: %s", m.CPU())
	}
	if b, err := os.ReadFile(log); err != nil || string(b) != "fake guest: good\n" {
		t.Errorf("%q %v", b, err)
	}
}

// A guest that does not come up ends within its bound, with the end of its console, and nothing of it is left.
func TestAGuestThatDoesNotComeUp(t *testing.T) {
	for mode, want := range map[string]error{"mute": ErrSilent, "ends": ErrEnded, "foreign": link.ErrFrame, "wrong greeting": link.ErrFrame} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			bound := time.Second
			if mode != "mute" {
				bound = time.Minute
			}
			begin := time.Now()
			m, tmp, err := fake(t, mode, Config{Boot: bound})
			if !errors.Is(err, want) || m != nil {
				t.Fatalf("%v, want %v", err, want)
			}
			if (mode == "mute" || mode == "ends") && !strings.Contains(err.Error(), "fake guest: "+mode) {
				t.Errorf("no console: %v", err)
			}
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("folder of the run: %v", err)
			}
		})
	}
}

// However a guest stops answering, an operation ends within its bound and with a reason; nothing follows on a
// conversation that was cut short, and the emulator can be ended.
func TestAGuestThatStopsAnswering(t *testing.T) {
	short := Config{Silence: 500 * time.Millisecond, Slowdown: 1}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, m *Machine) error {
		_, err := m.Run(ctx, link.Command{Argv: []string{"x"}}, time.Second, io.Discard, io.Discard)
		return err
	}
	stopped := func(ctx context.Context, m *Machine) error {
		if err := syscall.Kill(m.Pid, syscall.SIGSTOP); err != nil {
			return err
		}
		for { // all of its threads
			state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.Pid))
			if err != nil {
				return err
			}
			if strings.Contains(string(state), ") T ") {
				return run(ctx, m)
			}
			time.Sleep(time.Millisecond)
		}
	}
	for name, tt := range map[string]struct {
		mode string
		do   func(context.Context, *Machine) error
		want error
	}{
		"silent in a command":      {"falls silent", run, ErrSilent},
		"a command without an end": {"beats for ever", run, ErrSilent},
		"dead":                     {"dies", run, ErrEnded},
		"out of step":              {"out of step", run, link.ErrFrame},
		"stopped":                  {"good", stopped, ErrSilent},
		"takes nothing":            {"takes nothing", func(ctx context.Context, m *Machine) error { return m.Put(ctx, "/", File{From: big}) }, ErrSilent},
		"gives more than it may":   {"fills", func(ctx context.Context, m *Machine) error { return m.Get(ctx, t.TempDir(), 1<<20, "/") }, link.ErrTooMuch},
		"a caller who has had enough": {"falls silent", func(ctx context.Context, m *Machine) error {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			return run(ctx, m)
		}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := short
			if tt.want != ErrSilent {
				cfg.Silence = time.Minute
			}
			m, tmp, err := fake(t, tt.mode, cfg)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := tt.do(t.Context(), m); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			if err := run(t.Context(), m); err == nil || !strings.Contains(err.Error(), "cut short") {
				t.Errorf("afterwards: %v", err)
			}
			gone(t, m, tmp)
		})
	}
}

// The emulator ends with the program that started it, however that ends.
func TestTheEmulatorEndsWithItsStarter(t *testing.T) {
	if os.Getenv("HALLMARK_TEST_STARTER") != "" {
		m, _, err := fake(t, "good", Config{})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("pid %d\n", m.Pid)
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestTheEmulatorEndsWithItsStarter$")
	cmd.Env = append(os.Environ(), "HALLMARK_TEST_STARTER=1")
	out, _ := cmd.Output()
	_, text, ok := strings.Cut(string(out), "pid ")
	var pid int
	if _, err := fmt.Sscan(text, &pid); !ok || err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the emulator %d outlives its starter: %s", pid, state)
		}
	}
}

// The console's log is bounded, and its end is what a person may read.
func TestConsoleIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "console.log")
	c, err := newConsole(file)
	if err != nil {
		t.Fatal(err)
	}
	line := append(bytes.Repeat([]byte("y"), 1<<16-1), '\n')
	for range maxConsole>>16 + 3 {
		if n, err := c.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	c.Write([]byte("\x1b]0;title\x07last\x00\n"))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Size() != maxConsole {
		t.Errorf("%v %v", st, err)
	}
	if end := c.end(); !strings.HasSuffix(end, "]0;titlelast\n") || len(end) > consoleTail || strings.ContainsAny(end, "\x1b\x07\x00") {
		t.Errorf("%q", end[max(0, len(end)-40):])
	}
}
