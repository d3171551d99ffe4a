// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestOfNamesFoldersThatHoldTheProcess(t *testing.T) {
	dirs, err := Of(os.Getpid())
	if err != nil || len(dirs) == 0 {
		t.Fatalf("%v, %v", dirs, err)
	}
	found := 0
	for controller, dir := range dirs {
		body, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			t.Errorf("%q: %v", controller, err)
			continue
		}
		for _, pid := range strings.Fields(string(body)) {
			if pid == strconv.Itoa(os.Getpid()) {
				found++
			}
		}
	}
	if found == 0 {
		t.Errorf("none of %v has this process", dirs)
	}
	if _, err := Of(-1); err == nil {
		t.Error("no process has cgroups")
	}
}

func TestRemoveWaitsForTheLastProcess(t *testing.T) {
	mounts, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	parent := "/hallmark-cgroup-test-" + rand.Text()
	var made []string
	for _, m := range mounts {
		dir, ok := shown(m, parent)
		if ok && os.MkdirAll(filepath.Join(dir, "below", "deeper"), 0o755) == nil {
			made = append(made, dir)
		}
	}
	if len(made) == 0 {
		t.Fatal("no cgroup can be made here")
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait(); Remove(context.Background(), parent) })
	joined := false
	for _, dir := range made {
		joined = os.WriteFile(filepath.Join(dir, "below", "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0) == nil || joined
	}
	if !joined {
		t.Fatal("the process joins no cgroup")
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := Remove(short, parent); err == nil {
		t.Error("a cgroup with a process is said to be removed")
	}
	time.AfterFunc(200*time.Millisecond, func() { cmd.Process.Kill(); cmd.Process.Wait() })
	if err := Remove(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	for _, dir := range made {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := Remove(t.Context(), parent); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
	for _, root := range []string{"", "/", "/.", "a/.."} {
		if Remove(t.Context(), root) == nil {
			t.Errorf("%q is removed", root)
		}
	}
}
