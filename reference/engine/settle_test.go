// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that executes another file is read again, and the same file is hashed once only.
func TestDigestOfExeFollowsExec(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "read line; exec sleep 60")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var last unix.Stat_t
	var first, second string
	if changed, err := digestOfExe(cmd.Process.Pid, &last, &first); err != nil || !changed {
		t.Fatalf("first read: changed %v, %v", changed, err)
	}
	if changed, err := digestOfExe(cmd.Process.Pid, &last, &second); err != nil || changed {
		t.Fatalf("read of the same file: changed %v, %v", changed, err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		changed, err := digestOfExe(cmd.Process.Pid, &last, &second)
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the new file was not noticed")
		}
	}
	if second == first || second == "" {
		t.Errorf("digest before and after exec: %s and %s", first, second)
	}
}
