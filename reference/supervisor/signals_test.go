// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"testing"
)

func ignored(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^SigIgn:\t([0-9a-f]{16})$`).FindSubmatch(b)
	if m == nil {
		t.Fatal("no SigIgn line")
	}
	return string(m[1])
}

// What a parent ignores, a command does not.
func TestUnignore(t *testing.T) {
	signal.Ignore(syscall.SIGUSR2, syscall.SIGWINCH)
	defer signal.Reset(syscall.SIGUSR2, syscall.SIGWINCH)
	if ignored(t) == "0000000000000000" {
		t.Fatal("nothing is ignored: the test shows nothing")
	}
	if err := unignore(); err != nil {
		t.Fatal(err)
	}
	if got := ignored(t); got != "0000000000000000" {
		t.Errorf("still ignored: %s", got)
	}
}
