// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/tape"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

const unitFile = "../../examples/systemd/hallmark-worker.service"

// directives are the settings of the shipped unit, by name, in order.
func directives(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			out[name] = append(out[name], value)
		}
	}
	return out
}

// The unit gives the worker the time that its end takes, no mount namespace of its own, and does not
// start it again where that cannot help.
func TestUnit(t *testing.T) {
	unit := directives(t)
	only := func(name string) string {
		if len(unit[name]) != 1 {
			t.Errorf("%s is set %d times", name, len(unit[name]))
			return ""
		}
		return unit[name][0]
	}
	stop, err := time.ParseDuration(only("TimeoutStopSec") + "s")
	if err != nil || stop < drainTimeout+retireTimeout+10*time.Second {
		t.Errorf("TimeoutStopSec is %s, %v; the end may take %s", stop, err, drainTimeout+retireTimeout)
	}
	if mode := only("KillMode"); mode != "mixed" {
		t.Errorf("KillMode is %q: helpers would be ended under the worker", mode)
	}
	if only("RestartPreventExitStatus") != strconv.Itoa(exitFailed) || only("Restart") != "on-failure" {
		t.Error("a start that cannot succeed would be tried again, or a leftover would not be removed")
	}
	// systemd.exec(5): each of these puts the unit into a mount namespace from which no mount comes out.
	for _, name := range []string{
		"ProtectSystem", "ProtectHome", "ProtectProc", "ProcSubset", "PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateUsers", "ProtectKernelTunables", "ProtectKernelModules",
		"ProtectKernelLogs", "ProtectControlGroups", "ProtectHostname", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "TemporaryFileSystem", "BindPaths",
		"BindReadOnlyPaths", "RootDirectory", "RootImage", "MountAPIVFS", "DynamicUser", "MountImages", "ExtensionImages", "LoadCredential", "SetCredential", "LogNamespace",
	} {
		if len(unit[name]) > 0 {
			t.Errorf("%s gives the worker a mount namespace; the engine would not see its mounts", name)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil || !strings.Contains(string(readme), strings.TrimPrefix(unitFile, "../../")) {
		t.Errorf("README does not name the unit: %v", err)
	}
}

// systemd itself finds nothing wrong with the unit, where it is there to be asked.
func TestUnitIsVerified(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not on this host")
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hallmark-worker.service")
	there := strings.ReplaceAll(string(text), "/opt/hallmark/hallmark-worker", "/bin/true") // it looks for the program
	if err := os.WriteFile(path, []byte(there), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), tool, "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// A whole session with the capabilities that the unit leaves, and no way to get more.
func TestCapabilitiesOfTheUnitSuffice(t *testing.T) {
	set := "-all"
	for _, c := range strings.Fields(directives(t)["CapabilityBoundingSet"][0]) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	s := newSite(t)
	s.under = []string{"setpriv", "--no-new-privs", "--bounding-set", set}
	p := s.start()
	ctx := t.Context()
	lease := s.create("ws")
	if _, err := s.client.Write(ctx, "ws", lease.SandboxID, "data", []byte("x"), client.WriteOptions{}); err != nil {
		t.Error(err)
	}
	res, err := s.client.Exec(ctx, "ws", lease.SandboxID, api.ExecRequest{InvocationID: "i", Argv: []string{"cat", "data"}, TimeoutMs: 20_000, MaxOutputBytes: 10})
	if err != nil || string(res.Stdout) != "x" {
		t.Errorf("exec: %q, %q, %v", res.Stdout, res.Stderr, err)
	}
	if err := s.client.Dispose(ctx, "ws", lease.SandboxID); err != nil {
		t.Error(err)
	}
	if err := s.client.Purge(ctx, "ws"); err != nil {
		t.Error(err)
	}
	s.create("other") // the end has something to remove
	s.stop(p)
	if left := s.containers(); len(left) > 0 {
		t.Errorf("containers %v", left)
	}
}

// Three sandboxes, of which one cannot be removed: the others are, the exit status and the operator's
// sentence say that something is left, and the next start removes it.
func TestShutdownSaysWhatItLeft(t *testing.T) {
	s := newSite(t)
	s.cfg.Engine.PidFile = filepath.Join(t.TempDir(), "engine.pid")
	if err := os.WriteFile(s.cfg.Engine.PidFile, fmt.Appendln(nil, s.lab.EnginePid), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := s.cfg.Listen + "-tape"
	proxy, err := tape.Listen(socket, s.cfg.Engine.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	s.cfg.Engine.Socket = socket
	p := s.start()
	s.create("w1")
	before := s.containers()
	s.create("w2")
	s.create("w3")
	if len(before) != 1 {
		t.Fatalf("containers %v", before)
	}
	calls, mark, err := proxy.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	var first string // the path of the first container
	for _, c := range calls {
		if path, ok := strings.CutSuffix(c.Path, "/start"); ok && first == "" && strings.Contains(path, "/containers/") {
			first = path
		}
	}
	if err := proxy.Inject(target.TapeRule{Method: "DELETE", Match: first + "$", Nth: 1, Times: 1 << 20, Status: 500}); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.wait(p); code != exitNegative || !strings.Contains(p.stderr.String(), "left something behind") {
		t.Errorf("exit status %d: %s", code, p.stderr)
	}
	if left := s.containers(); !slices.Equal(left, before) {
		t.Errorf("left are %v, want %v", left, before)
	}
	if calls, _, err := proxy.Since(mark); err != nil || !slices.ContainsFunc(calls, func(c target.TapeCall) bool { return c.Fault != "" }) {
		t.Errorf("no removal was refused: %v", err)
	}
	if err := proxy.Close(); err != nil {
		t.Error(err)
	}
	s.cfg.Engine.Socket = s.lab.Socket
	p = s.start()
	if left := s.containers(); len(left) > 0 {
		t.Errorf("after the restart: %v", left)
	}
	s.stop(p)
}

// TestStatusOfAFailedStart: what passes by itself has a status on which the unit starts again; what has to be
// corrected has not.
func TestStatusOfAFailedStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, busy := worker.ListenUnsafeCleartextLoopback(t.Context(), taken.Addr().String())
	socket := filepath.Join(t.TempDir(), "s")
	l, err := worker.Listen(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, listening := worker.Listen(t.Context(), socket)
	log := slog.New(slog.DiscardHandler)
	_, down := engine.New(t.Context(), engine.Config{
		Socket: filepath.Join(t.TempDir(), "absent"), Runtime: "runsc", CgroupParent: "/", Log: log,
		Ceilings: api.Resources{CPUs: 1, MemoryBytes: 1, PIDs: 1, WorkspaceBytes: 1, WorkspaceInodes: 1},
	})
	_, unknown := engine.New(t.Context(), engine.Config{Log: log})
	_, file := worker.Listen(t.Context(), t.TempDir())
	for name, tt := range map[string]struct {
		err  error
		want int
	}{
		"address in use":   {busy, exitNotReady},
		"socket in use":    {listening, exitNotReady},
		"address not here": {os.NewSyscallError("bind", unix.EADDRNOTAVAIL), exitNotReady},
		"no engine":        {down, exitNotReady},
		"slow reconcile":   {fmt.Errorf("reconcile: %w", errors.Join(errors.New("busy"), context.DeadlineExceeded)), exitNotReady},
		"no runtime":       {unknown, exitFailed},
		"not a socket":     {file, exitFailed},
		"locked":           {state.ErrLocked, exitFailed},
		"no evidence":      {api.E(api.Unqualified, nil), exitNegative},
	} {
		if tt.err == nil {
			t.Fatalf("%s: no error", name)
		}
		var said strings.Builder
		if code := report(&said, errors.Join(needs(tt.err, "it cannot start", "correct it"), nil)); code != tt.want {
			t.Errorf("%s: exit status %d, want %d: %s", name, code, tt.want, &said)
		}
	}
}
