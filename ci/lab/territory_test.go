// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestOwnsProcess(t *testing.T) {
	tr, err := newTerritory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		p    process
		want bool
	}{
		{"in the cgroup parent", process{exe: "/bin/sleep", cgroups: "4:memory:/other\n0::" + tr.cgroup + "/abc\n"}, true},
		{"in the cgroup parent itself", process{exe: "/bin/sleep", cgroups: "0::" + tr.cgroup + "\n"}, true},
		{"another lab's cgroup", process{exe: "/bin/sleep", cgroups: "0::" + tr.cgroup + "0/abc\n"}, false},
		{"engine on our run folder", process{exe: "/usr/bin/dockerd", cmdline: "dockerd --config-file " + tr.runDir + "/daemon.json"}, true},
		{"the host's engine", process{exe: "/usr/bin/dockerd", cmdline: "dockerd -H fd://"}, false},
		{"a pager on our log", process{exe: "/usr/bin/less", cmdline: "less " + tr.logPath()}, false},
		{"a worker below our work folder", process{exe: "/x/bin/hallmark-worker", cmdline: "hallmark-worker serve --config " + tr.workDir() + "/w/config.json"}, true},
		{"another worker", process{exe: "/x/bin/hallmark-worker", cmdline: "hallmark-worker serve --config /etc/w.json"}, false},
		{"our runsc for someone else", process{exe: filepath.Join(tr.cache, "runtimes/sha256-0/runsc"), cmdline: "runsc --root /run/other"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tr.ownsProcess(tt.p); got != tt.want {
				t.Errorf("owns %+v: %v, want %v", tt.p, got, tt.want)
			}
		})
	}
}

func TestTerritoryIsNamedByTheResolvedFolder(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	a, errA := newTerritory(dir)
	b, errB := newTerritory(link)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if a != b {
		t.Errorf("one folder by two names has two territories: %+v, %+v", a, b)
	}
	// The control socket of runsc is the longest path (unix(7): 107 bytes and a zero).
	if socket := a.runDir + "/runtime-runc/hl/runsc-" + strings.Repeat("0", 64) + ".sock"; len(socket) > 107 {
		t.Errorf("%s has %d bytes", socket, len(socket))
	}
}

func TestMissingLibraries(t *testing.T) {
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := missingLibraries(t.Context(), sh, nil); err != nil || len(missing) != 0 {
		t.Errorf("the shell of this machine lacks %q, %v", missing, err)
	}
	// A copy that asks for a library of another name of the same length has exactly that one missing.
	body, err := os.ReadFile(sh)
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "sh")
	if err := os.WriteFile(broken, []byte(strings.Replace(string(body), "libc.so.6", "libq.so.6", 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	missing, err := missingLibraries(t.Context(), broken, nil)
	if err != nil || len(missing) != 1 || missing[0] != "libq.so.6" {
		t.Errorf("missing %q, %v; want libq.so.6", missing, err)
	}
}

// Bubblewrap is offered with its digest, and a distribution without it still has a lab.
func TestBubblewrapMayBeAbsent(t *testing.T) {
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	p, err := openPackages(filepath.Join(cache, "packages"), &said)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := findTools(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := FileDigest(tools.bubblewrap.Path); err != nil || digest != tools.bubblewrap.Digest || tools.missing[Bubblewrap] != "" {
		t.Errorf("%+v, %v; missing %v", tools.bubblewrap, err, tools.missing)
	}
	for _, dir := range tools.path {
		if strings.Contains(dir, "bubblewrap") {
			t.Errorf("the engine gets %s on its PATH", dir)
		}
	}
	p.index["bubblewrap"] = noFolder
	if tools, err = findTools(t.Context(), p); err != nil || tools.bubblewrap.Path != "" || tools.missing[Bubblewrap] == "" || !strings.Contains(said.String(), "bwrap is left out") {
		t.Errorf("without the package: %v, missing %v, said %q", err, tools.missing, said.String())
	}
}

// TestKillSparesAReusedPid gives kill a start time that is not the process's own.
func TestKillSparesAReusedPid(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stale := process{pid: cmd.Process.Pid, start: start - 1}
	if err := stale.kill(9); err != nil {
		t.Error(err)
	}
	if now, err := startTime(cmd.Process.Pid); err != nil || now != start {
		t.Errorf("a process was killed by the pid of another: %v", err)
	}
	if err := (process{pid: cmd.Process.Pid, start: start}).kill(9); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the right process was not killed")
	}
}

func TestOwnersOfProbes(t *testing.T) {
	own, err := probeOwner()
	if err != nil {
		t.Fatal(err)
	}
	pid, start, _ := strings.Cut(own, "-")
	for owner, lives := range map[string]bool{own: true, pid + "-1": false, "999999999-" + start: false, "somebody": true, "1-x": true, "": true} {
		if got := probeOwnerLives(owner); got != lives {
			t.Errorf("%q lives: %v", owner, got)
		}
	}
}
