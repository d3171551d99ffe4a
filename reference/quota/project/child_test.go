// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Environment of a second process of this test binary: what it does, where, and at which step it is killed.
const (
	childVerb = "PROJECT_TEST_VERB"
	childDir  = "PROJECT_TEST_DIR"
	childKill = "PROJECT_TEST_KILL"
)

// child is a helper that is killed without a chance to clean up. Steps are the durable ones and each
// change of an inode.
func child() int {
	left, err := strconv.Atoi(os.Getenv(childKill))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	step := func(string) {
		if left--; left < 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	s, err := openStore(os.Getenv(childDir), newCounting(os.Getenv(childDir)))
	if err == nil {
		s.step = step
		s.at.change = func(uint64) { step("change") }
		if os.Getenv(childVerb) == "apply" {
			_, err = s.Apply(context.Background(), "w", 8*mib, 64, ids, Reserve{})
		} else {
			_, err = s.Release(context.Background(), "w", 5*time.Second)
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// killedAt runs a child; ended says that it came to its end before the step.
func killedAt(t *testing.T, verb, dir string, step int) (ended bool) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), childVerb+"="+verb, childDir+"="+dir, childKill+"="+strconv.Itoa(step))
	out, err := c.CombinedOutput()
	if err != nil && c.ProcessState.String() != "signal: killed" {
		t.Fatalf("%s killed at step %d: %v, %s", verb, step, err, out)
	}
	return err == nil
}

// TestKilledApply kills it at each durable step and before each change: what is left is sound, and the
// next call ends what was begun, on the same id.
func TestKilledApply(t *testing.T) {
	kills := 0
	for _, populated := range []bool{false, true} {
		for step := 0; ; step++ {
			s, _ := newStore(t)
			if populated {
				w := applyTo(t, s, "w")
				create(t, w.Path, "d/", "d/f", "l>f", "p|")
				for _, n := range []string{"d", "d/f"} {
					setMark(t, w.Path+"/"+n, 0, false)
				}
			}
			ended := killedAt(t, "apply", s.dir, step)
			sound(t, s)
			w := applyTo(t, s, "w")
			sound(t, s)
			holds(t, w.Path, w.ProjectID)
			if w.ProjectID != ids.First {
				t.Errorf("step %d: a second id was taken: %d", step, w.ProjectID)
			}
			if _, err := s.Verify(t.Context(), "w"); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
			releaseOf(t, s, "w")
			if left := files(t, s); len(left) > 0 {
				t.Errorf("step %d: left behind: %q", step, left)
			}
			if t.Failed() {
				t.FailNow()
			}
			if ended {
				break
			}
			kills++
		}
	}
	if kills < 9 {
		t.Errorf("killed only %d times", kills)
	}
}

// TestKilledRelease does the same with a release: until it has ended nobody else gets the id.
func TestKilledRelease(t *testing.T) {
	kills := 0
	for step := 0; ; step++ {
		s, _ := newStore(t)
		w := applyTo(t, s, "w")
		create(t, w.Path, "d/", "d/f", "l>f", "p|")
		ended := killedAt(t, "release", s.dir, step)
		sound(t, s)
		if other := applyTo(t, s, "other"); !ended && other.ProjectID == w.ProjectID {
			t.Errorf("step %d: the id was given again", step)
		}
		releaseOf(t, s, "w")
		releaseOf(t, s, "other")
		if left := files(t, s); len(left) > 0 {
			t.Errorf("step %d: left behind: %q", step, left)
		}
		if t.Failed() {
			t.FailNow()
		}
		if ended {
			break
		}
		kills++
	}
	if kills < 4 {
		t.Errorf("killed only %d times", kills)
	}
}
