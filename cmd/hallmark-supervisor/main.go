// SPDX-License-Identifier: Apache-2.0

// Command hallmark-supervisor is PID 1 of a sandbox, and the helpers that PID 1 and the engine
// start in it:
//
//	supervisor             run as PID 1
//	bridge                 relay stdin and stdout to the control socket; for the engine's exec, as root
//	invoke                 run invocations for PID 1; for PID 1 only
//	launch DIR COMMAND...  become the tenant and execute a command; for invoke only
//	launch-secret DIR ...  the same, and descriptor 3 goes on to the command
//	stats                  print the supervisor's counters, one per line; for root in the sandbox
//
// It exits 1 on failure and 3 when whoever listens at the socket is not the supervisor.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/supervisor"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hallmark-supervisor:", err)
		if errors.Is(err, supervisor.ErrImpostor) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && (args[0] == supervisor.StageLaunch || args[0] == supervisor.StageLaunchSecret) {
		return supervisor.Launch(args)
	}
	if len(args) == 1 {
		switch args[0] {
		case "supervisor":
			return supervisor.Run(os.Stderr)
		case "bridge":
			return supervisor.Bridge(os.Stdin, os.Stdout)
		case "invoke":
			return supervisor.Invoke()
		case "stats":
			return stats(os.Stdout)
		}
	}
	return errors.New("want one of supervisor, bridge, invoke, launch, launch-secret, stats")
}

func stats(w io.Writer) error {
	conn, err := supervisor.Dial()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), control.FirstRequestWithin)
	defer cancel()
	c, err := control.Connect(ctx, conn)
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(w, "%s %d\n", name, m[name])
	}
	return nil
}
