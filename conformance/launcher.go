// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/onsi/ginkgo/v2/ginkgo/command"
	"github.com/onsi/ginkgo/v2/ginkgo/run"
	"golang.org/x/sys/unix"
)

// launchedEnv tells the processes that a launcher starts from the launcher.
const launchedEnv = "HALLMARK_SUITE_PROCESS"

// launch runs Ginkgo's own run command in this process, which starts the suite's processes, hands
// them the cases one by one and merges their reports. Ginkgo starts them with no say of ours: they
// find the plan by the environment and inherit the descriptors from [fdEvents] on.
func launch(p plan) error {
	stop, err := holdLifeLine()
	if err != nil {
		return err
	}
	defer stop()
	// The command takes a precompiled suite by the end of its name.
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	suite := filepath.Join(p.Shared, "hallmark.test")
	if err := os.Symlink(executable, suite); err != nil {
		return fmt.Errorf("name the suite: %w", err)
	}
	// It names its reports by the way from here to the suite, and asks the go command on the path, if
	// there is one, for versions.
	err = errors.Join(os.Chdir(p.Shared), os.Setenv(launchedEnv, "1"), os.Setenv("PATH", ""))
	if err != nil {
		return fmt.Errorf("prepare the launch: %w", err)
	}
	code, err := ginkgoRun([]string{
		"--procs=" + strconv.Itoa(p.Procs), "--seed=" + strconv.FormatInt(p.Seed, 10), "--randomize-all", "--timeout=0",
		"--output-interceptor-mode=none", "--no-color", "--output-dir=" + p.Raw, "--json-report=" + ginkgoFile, suite,
	}, p.Arguments)
	if err == nil && code != 0 {
		err = errors.New("a process of the suite did not end well")
	}
	return err
}

// ginkgoRun calls the command, which ends by a panic that carries the exit status.
func ginkgoRun(args, through []string) (code int, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
			err = errors.New("Ginkgo's run command came back without a status")
		case command.AbortDetails:
			code, err = v.ExitCode, v.Error
		default:
			panic(v)
		}
	}()
	run.BuildRunCommand().Run(args, through)
	return 0, nil
}

// holdLifeLine gives the processes to be started a life line of their own, which ends when this
// process ends, is told to stop, or loses its own.
func holdLifeLine() (stop func(), err error) {
	own, err := unix.FcntlInt(fdLife, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("life line: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("life line: %w", err)
	}
	if err := unix.Dup3(int(r.Fd()), fdLife, 0); err != nil {
		return nil, fmt.Errorf("life line: %w", err)
	}
	r.Close()
	stop = sync.OnceFunc(func() { w.Close() })
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { <-signals; stop() }()
	go func() {
		os.NewFile(uintptr(own), "life").Read(make([]byte, 1)) // nobody writes: it returns at the end
		stop()
	}()
	return stop, nil
}
