// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
	os.Exit(m.Run())
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
	note(q.Op, os.Getpid())
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
	case "child": // the leader ends, a child in its group holds the output open
		c := exec.Command("/bin/sleep", "3600")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			return 6
		}
		note("child", c.Process.Pid)
	}
	os.Stdout.Write(payload)
	return 0
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
