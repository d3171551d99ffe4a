// SPDX-License-Identifier: Apache-2.0

// Command run builds hallmark, hallmark-worker, hallmark-supervisor and hallmark-quota into bin/.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"

	"github.com/hallmark-sandbox/hallmark/ci/build"
)

func main() {
	out := flag.String("out", "bin", "folder for the binaries")
	needRoot := flag.Bool("need-root", false, "stop before building when not root on Linux")
	flag.Parse()
	if *needRoot {
		if runtime.GOOS != "linux" {
			fail("this needs Linux", "run it on Debian 12 or newer, or on Ubuntu")
		}
		if os.Geteuid() != 0 {
			fail("this needs root, to start a private engine, loop devices and network namespaces", "run it as root, for example with sudo")
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := build.All(ctx, build.Options{Source: ".", Out: *out}); errors.Is(err, fs.ErrPermission) {
		fail(err.Error(), *out+" may be of an earlier build as root: build as root again, or remove it as root")
	} else if err != nil {
		fail(err.Error(), "run it from the repository's root, with Go 1.26 or newer on PATH")
	}
}

func fail(sentence, remedy string) {
	fmt.Fprintf(os.Stderr, "error: %s.\nremedy: %s.\n", sentence, remedy)
	os.Exit(3)
}
