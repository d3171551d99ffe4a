// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sealedArgument makes the test binary a process that is sealed, and says what it and its child may dump.
const sealedArgument = "sealed-process"

func sealedProcess() int {
	if err := seal(); err != nil {
		fmt.Println(err)
		return 1
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	child, cerr := exec.Command("/bin/cat", "/proc/self/limits").Output()
	fmt.Println("dumpable", dumpable, err, cerr)
	for line := range strings.Lines(string(child)) {
		if strings.HasPrefix(line, "Max core file size") {
			fmt.Println(strings.Fields(line)[4:])
		}
	}
	return 0
}

func TestSealedProcessDumpsNoCore(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(self, sealedArgument).CombinedOutput()
	if want := "dumpable 0 <nil> <nil>\n[1 1 bytes]\n"; err != nil || string(out) != want {
		t.Errorf("%v: it says %q, want %q", err, out, want)
	}
}
