// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"io"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bystander is a process of this test that nothing here may signal. Its end closes ended.
func bystander(t *testing.T) (st stat, ended <-chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := make(chan struct{})
	go func() { cmd.Wait(); close(c) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-c })
	st, err := readStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return st, c
}

// unhurt fails when the bystander has ended.
func unhurt(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
		t.Error("the process that has the number now was killed")
	case <-time.After(100 * time.Millisecond): // SIGKILL takes effect sooner
	}
}

// Whoever has the number of an ended process by now is not signalled in its place. Between a look and its
// signals the number may come back: the look is of another process then, with another start or parent.
func TestRecycledNumberIsNotSignalled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		stale func(*stat)
	}{
		{"another start", func(s *stat) { s.start-- }},
		{"another parent", func(s *stat) { s.ppid++ }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st, ended := bystander(t)
			look := st
			tt.stale(&look)
			if signalProven(look, unix.SIGKILL, false) {
				t.Error("the link counts as proven")
			}
			unhurt(t, ended)
			// The same look, not stale, does reach it: so the refusal means something.
			if !signalProven(st, unix.SIGKILL, false) {
				t.Error("a true link does not count as proven")
			}
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Error("the process of a true link was not killed")
			}
			if signalProven(st, unix.SIGKILL, false) {
				t.Error("a number that nobody has counts as proven")
			}
		})
	}
	t.Run("the leader is reaped", func(t *testing.T) {
		st, ended := bystander(t)
		v := &invocation{k: &keeper{}, leader: st.pid, ended: true}
		if v.group(unix.SIGKILL) {
			t.Error("the group of a reaped leader was signalled")
		}
		unhurt(t, ended)
	})
	t.Run("the keeper is reaped", func(t *testing.T) {
		st, ended := bystander(t)
		for name, now := range map[string]map[int]*child{"nobody": {}, "another keeper": {st.pid: {pid: st.pid}}} {
			r := &reaper{audit: newAudit(io.Discard), keepers: now}
			r.kill(&child{pid: st.pid})
			r.killTree(&child{pid: st.pid})
			t.Log(name + " has the number")
			unhurt(t, ended)
		}
	})
}
