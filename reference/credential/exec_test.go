// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/credential/credentialtest"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// The test binary is the program too: the argv of a provider is fixed and its environment empty, so
// it is told by an argument.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "provide" {
		os.Exit(provide(os.Args[2], os.Args[3]))
	}
	if len(os.Args) == 4 && os.Args[1] == "flee" {
		os.Exit(flee(os.Args[2], os.Args[3]))
	}
	if len(os.Args) == 3 && os.Args[1] == "die-with-provider" {
		dieWithProvider(os.Args[2])
	}
	os.Exit(m.Run())
}

// flee ends at once and leaves a process in another session and group, whose parent is gone, that
// ignores every signal it can; once more below that when deep is 2. Its pid as this host's /proc has it
// goes to log, before the parent ends.
func flee(deep, log string) int {
	if deep != "0" {
		next := map[string]string{"1": "0", "2": "1"}[deep]
		c := exec.Command("/proc/self/exe", "flee", next, log)
		c.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		c.Stdout = os.Stdout // it holds the output open, too
		ready, w, err := os.Pipe()
		if err != nil {
			return 4
		}
		c.ExtraFiles = []*os.File{w}
		if c.Start() != nil {
			return 4
		}
		w.Close()
		io.ReadAll(ready) // until it has written its line, or is dead
		return 0
	}
	signal.Ignore()
	self, err := os.Readlink("/proc/self")
	f, ferr := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil || ferr != nil {
		return 3
	}
	fmt.Fprintf(f, "fled x %s\n", self)
	f.Close()
	os.NewFile(3, "ready").Close()
	time.Sleep(time.Hour)
	return 0
}

// dieWithProvider is killed while its provider runs.
func dieWithProvider(log string) {
	self, err := os.Executable()
	if err == nil {
		var p *credential.Exec
		if p, err = credential.NewExec([]string{self, "provide", "escape-and-hang", log}, time.Hour); err == nil {
			_, err = p.Lease(context.Background(), fixtureRequest())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(9)
}

// provide is one run of the program. It writes what it was asked, and its pid, to log.
func provide(mode, log string) int {
	var q struct {
		Version string `json:"version"`
		Op      string `json:"op"`
		credential.Request
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil || strictjson.Unmarshal(text, &q, strictjson.Default) != nil || q.Version != credential.ExecRequestVersion || len(os.Environ()) != 0 {
		return 9
	}
	if wd, err := os.Getwd(); err != nil || wd != "/" {
		return 8
	}
	note := func(what string, pid int) {
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			os.Exit(7)
		}
		fmt.Fprintf(f, "%s %s %d\n", what, q.AttemptID, pid)
		f.Close()
	}
	self, err := os.Readlink("/proc/self") // as the host counts; in its own namespace this process is 1
	if err != nil || os.Getpid() != 1 {
		return 7
	}
	pid, err := strconv.Atoi(self)
	if err != nil {
		return 7
	}
	note(q.Op, pid)
	if q.Op == "dispose" {
		return 0
	}
	if q.BindingID != credentialtest.BindingID {
		return 3
	}
	payload := credentialtest.Payload(time.Now().Add(time.Hour))
	switch mode {
	case "loud":
		fmt.Fprintln(os.Stderr, credentialtest.Secret)
		fmt.Println(credentialtest.Secret)
		return 1
	case "hang":
		os.Stdout.Write(payload)
		time.Sleep(time.Hour)
	case "flood":
		for {
			if _, err := os.Stdout.Write(payload); err != nil {
				return 1
			}
		}
	case "escape": // grandchildren in sessions of their own, deaf to signals, which nobody waits for
		for _, deep := range []string{"1", "2"} {
			c := exec.Command("/proc/self/exe", "flee", deep, log)
			c.SysProcAttr = &unix.SysProcAttr{Setsid: true}
			c.Stdout = os.Stdout
			if err := c.Run(); err != nil {
				return 5
			}
		}
	case "escape-and-hang":
		c := exec.Command("/proc/self/exe", "flee", "2", log)
		c.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		if err := c.Run(); err != nil {
			return 5
		}
		time.Sleep(time.Hour)
	case "child": // the leader ends, a child in its group holds the output open
		c := exec.Command("/bin/sleep", "3600")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			return 6
		}
		link, err := hostPid(c.Process.Pid)
		if err != nil {
			return 6
		}
		note("child", link)
	}
	os.Stdout.Write(payload)
	return 0
}

// hostPid is the number that this host's /proc has for a process of this one's namespace.
func hostPid(inside int) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		b, _ := os.ReadFile(f)
		_, rest, _ := strings.Cut(string(b), "\nNSpid:")
		line, _, _ := strings.Cut(rest, "\n")
		if ids := strings.Fields(line); len(ids) > 1 && ids[len(ids)-1] == strconv.Itoa(inside) && sameNamespace(ids[0]) {
			return strconv.Atoi(ids[0])
		}
	}
	return 0, fmt.Errorf("no process is %d here", inside)
}

func sameNamespace(pid string) bool {
	own, err := os.Readlink("/proc/self/ns/pid")
	other, oerr := os.Readlink("/proc/" + pid + "/ns/pid")
	return err == nil && oerr == nil && own == other
}

// program is a provider of the given mode, and the lines of its log.
func program(t *testing.T, mode string, timeout time.Duration) (*credential.Exec, func() []string) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	log := filepath.Join(t.TempDir(), "log")
	p, err := credential.NewExec([]string{self, "provide", mode, log}, timeout)
	must(t, err)
	return p, func() []string {
		b, err := os.ReadFile(log)
		must(t, err)
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

func TestExecProviderKeepsTheContract(t *testing.T) {
	credentialtest.Run(t, credentialtest.Config{
		New:    func(t *testing.T) credential.Provider { p, _ := program(t, "good", 30*time.Second); return p },
		Broken: func(t *testing.T) credential.Provider { p, _ := program(t, "loud", 30*time.Second); return p },
	})
}

// gone fails when the process of a line of the log is there; a zombie of another parent is no process.
func gone(t *testing.T, line string) {
	t.Helper()
	fields := strings.Fields(line)
	pid, err := strconv.Atoi(fields[len(fields)-1])
	must(t, err)
	deadline := time.Now().Add(10 * time.Second)
	for unix.Kill(pid, 0) == nil {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q is alive", line)
		}
		time.Sleep(time.Millisecond) // a killed process needs a moment to die, and is nobody's child here
	}
}

// goneNow is gone for what the kernel has proven: there is nothing to wait for.
func goneNow(t *testing.T, line string) {
	t.Helper()
	fields := strings.Fields(line)
	if _, err := os.Stat("/proc/" + fields[len(fields)-1]); err == nil {
		t.Errorf("%q is there after the call", line)
	}
}

func TestExecProviderLeavesNoProcess(t *testing.T) {
	t.Run("hang", func(t *testing.T) {
		p, log := program(t, "hang", 2*time.Second)
		b, err := p.Lease(t.Context(), fixtureRequest())
		if !errors.Is(err, credential.ErrTimedOut) || b != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		gone(t, log()[0])
	})
	t.Run("flood", func(t *testing.T) {
		p, log := program(t, "flood", 30*time.Second)
		b, err := p.Lease(t.Context(), fixtureRequest())
		if !errors.Is(err, credential.ErrTooLarge) || b != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		gone(t, log()[0])
	})
	t.Run("child", func(t *testing.T) {
		p, log := program(t, "child", 30*time.Second)
		b, err := p.Lease(t.Context(), fixtureRequest())
		if err != nil || credential.CheckPayload(b, fixtureRequest(), time.Now()) != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		gone(t, log()[1])
	})
	t.Run("escape", func(t *testing.T) {
		p, log := program(t, "escape", 60*time.Second)
		b, err := p.Lease(t.Context(), fixtureRequest())
		if err != nil || credential.CheckPayload(b, fixtureRequest(), time.Now()) != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		lines := log()
		if len(lines) != 3 {
			t.Fatalf("%d lines, 3 are needed: %q", len(lines), lines)
		}
		for _, line := range lines {
			goneNow(t, line)
		}
	})
	t.Run("escape and hang", func(t *testing.T) {
		p, log := program(t, "escape-and-hang", 3*time.Second)
		if b, err := p.Lease(t.Context(), fixtureRequest()); !errors.Is(err, credential.ErrTimedOut) || b != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		lines := log()
		if len(lines) != 2 {
			t.Fatalf("%d lines, 2 are needed: %q", len(lines), lines)
		}
		for _, line := range lines {
			goneNow(t, line)
		}
	})
	t.Run("this process is killed", func(t *testing.T) {
		self, err := os.Executable()
		must(t, err)
		file := filepath.Join(t.TempDir(), "log")
		c := exec.Command(self, "die-with-provider", file)
		c.Stderr = os.Stderr
		must(t, c.Start())
		var lines []string
		for deadline := time.Now().Add(60 * time.Second); len(lines) < 2; time.Sleep(10 * time.Millisecond) {
			b, _ := os.ReadFile(file)
			if lines = strings.Split(strings.TrimSpace(string(b)), "\n"); time.Now().After(deadline) {
				t.Fatalf("the provider does not come up: %q", lines)
			}
		}
		must(t, c.Process.Kill())
		_ = c.Wait() // killed
		for _, line := range lines {
			gone(t, line)
		}
	})
	t.Run("caller leaves", func(t *testing.T) {
		p, log := program(t, "hang", 30*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if b, err := p.Lease(ctx, fixtureRequest()); err == nil || b != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		gone(t, log()[0])
	})
}

func TestExecProviderRefusesItsProgram(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	copied := filepath.Join(dir, "program")
	b, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(copied, b, 0o700))
	log := filepath.Join(dir, "log")
	p, err := credential.NewExec([]string{copied, "provide", "good", log}, 30*time.Second)
	must(t, err)
	must(t, os.Chmod(copied, 0o722))
	if _, err := p.Lease(t.Context(), fixtureRequest()); !errors.Is(err, credential.ErrUnsafe) {
		t.Errorf("a program that others can write: %v", err)
	}
	if _, err := os.Stat(log); err == nil {
		t.Error("it was run")
	}
	for name, argv := range map[string][]string{"others can write": {copied}, "relative": {"program"}, "absent": {filepath.Join(dir, "none")}, "directory": {dir}, "none": {}} {
		if _, err := credential.NewExec(argv, time.Second); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
