// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestProcessesAreKnownByTheirStart(t *testing.T) {
	self, err := Find(os.Getpid())
	if err != nil || !self.Alive() {
		t.Fatalf("%+v, %v", self, err)
	}
	reused := Process{Pid: self.Pid, Start: self.Start + "0"}
	if reused.Alive() || (Process{}).Alive() || (Process{Pid: -1}).Alive() {
		t.Error("another process's number counts as alive")
	}
	if parent, err := Parent(os.Getpid()); err != nil || parent != os.Getppid() {
		t.Errorf("parent %d, %v", parent, err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := Find(cmd.Process.Pid)
	if err != nil || !child.Alive() {
		t.Errorf("%+v, %v", child, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if child.Alive() {
		t.Error("a process that was waited for is alive")
	}
}

// folder is a run's folder with some content and a record of the given owner.
func folder(t *testing.T, parent, name string, r Record) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	if err := os.MkdirAll(filepath.Join(dir, "workspaces", "w"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSweepTakesTheDeadOnly(t *testing.T) {
	parent := t.TempDir()
	self, err := Find(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := Process{Pid: self.Pid, Start: self.Start + "0"}
	silent := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: silent, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // the socket's file stays: an engine that may come back

	gone := folder(t, parent, "gone", Record{Owner: dead, Engine: filepath.Join(parent, "no-socket"), Label: "x=y"})
	waits := folder(t, parent, "waits", Record{Owner: dead, Engine: silent, Label: "x=y"})
	living := folder(t, parent, "living", Record{Owner: self, Engine: filepath.Join(parent, "no-socket"), Label: "x=y"})
	// Somebody else's word about what is to be removed is not taken.
	strange := folder(t, parent, "strange", Record{Owner: dead, Engine: filepath.Join(parent, "no-socket"), Label: "x=y"})
	if err := os.Chown(filepath.Join(strange, File), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	open := folder(t, parent, "open", Record{Owner: dead, Engine: filepath.Join(parent, "no-socket"), Label: "x=y"})
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(parent, "foreign")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{gone: false, waits: true, living: true, foreign: true, strange: true, open: true} {
		if _, err := os.Stat(dir); (err == nil) != want || err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
	}
	if _, err := os.Stat(filepath.Join(waits, File)); err != nil {
		t.Errorf("the record that waits for its engine: %v", err)
	}
	if err := os.WriteFile(filepath.Join(foreign, File), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(t.Context(), parent); err == nil {
		t.Error("a record that cannot be read is passed over")
	}
	if err := Sweep(t.Context(), filepath.Join(parent, "absent")); err != nil {
		t.Error(err)
	}
}
