// SPDX-License-Identifier: Apache-2.0

package labcmd

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/ci/vm"
	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
)

func vmCommand() *cobra.Command {
	return exit.Group(&cobra.Command{Use: "vm", Short: "A Debian 13 guest under QEMU: another kernel, cgroup v2, enforced project quota"}, vmBuildCommand(), vmRunCommand())
}

func vmBuildCommand() *cobra.Command {
	return &cobra.Command{
		Use: "build", Short: "Build the guest's image into the cache, when it is not there", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			img, err := prepareVM(cmd)
			if err != nil {
				return err
			}
			return say(cmd.OutOrStdout(), "The image is in the cache: kernel %s, %d packages, key %s.", img.Record.Release, len(img.Record.Packages), img.Record.Key)
		},
	}
}

func vmOptions(cmd *cobra.Command) (vm.Options, error) {
	repo, err := lab.RepoDir()
	if err != nil {
		return vm.Options{}, failed("the repository cannot be found", err)
	}
	cache, err := lab.CacheDir()
	if err != nil {
		return vm.Options{}, failed("the cache folder cannot be found", err)
	}
	return vm.Options{Cache: cache, Repo: repo, Out: cmd.ErrOrStderr()}, nil
}

func prepareVM(cmd *cobra.Command) (vm.Image, error) {
	o, err := vmOptions(cmd)
	if err != nil {
		return vm.Image{}, err
	}
	img, err := vm.Prepare(cmd.Context(), o)
	if err != nil {
		return vm.Image{}, failed("the guest's image cannot be built", err)
	}
	return img, nil
}

// vmRun is one `hallmark lab vm run`.
type vmRun struct {
	put, get []string
	out      string
	dir      string
	timeout  time.Duration
}

// maxOut bounds what one run takes out of the guest, in bytes.
const maxOut = 1 << 30

func vmRunCommand() *cobra.Command {
	var r vmRun
	c := &cobra.Command{
		Use: "run [flags] -- COMMAND [ARGUMENT...]", Short: "Start a clean guest, run one command in it as root, and end it",
		Long: "Start a clean guest, run one command in it as root, and end it.\n\n" +
			"The guest has no network. /quota/ext4 and /quota/xfs are file systems with enforced project quota.\n" +
			"Exit status: 0 the command's was 0, 1 it was another, 2 it did not end in time, 3 the guest failed.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd, args) },
	}
	f := c.Flags()
	f.StringArrayVar(&r.put, "put", nil, "copy a file or folder into the guest before: PATH:FOLDER (repeatable)")
	f.StringArrayVar(&r.get, "get", nil, "copy a file or folder out of the guest afterwards, into the output folder (repeatable)")
	f.StringVar(&r.out, "out", filepath.Join("out", "vm"), "output folder: console.log, and what is copied out")
	f.StringVar(&r.dir, "dir", "/root", "working folder of the command, in the guest")
	f.DurationVar(&r.timeout, "timeout", 10*time.Minute, "bound of the command")
	return c
}

func (r vmRun) run(cmd *cobra.Command, argv []string) (err error) {
	var files []vm.File
	var folders []string
	for _, p := range r.put {
		i := strings.LastIndexByte(p, ':')
		if i < 1 || !path.IsAbs(p[i+1:]) {
			return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--put is %q", p), Remedy: "name a path, a colon and an absolute folder of the guest"}
		}
		files, folders = append(files, vm.File{From: p[:i]}), append(folders, p[i+1:])
	}
	for _, g := range r.get {
		if !path.IsAbs(g) {
			return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--get is %q", g), Remedy: "name an absolute path of the guest"}
		}
	}
	if r.timeout <= 0 {
		return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--timeout is %s", r.timeout), Remedy: "name a time, for example 10m"}
	}
	img, err := prepareVM(cmd)
	if err != nil {
		return err
	}
	o, err := vmOptions(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	m, err := vm.Start(ctx, o, img, vm.Config{Console: filepath.Join(r.out, "console.log")})
	if err != nil {
		return failed("the guest cannot be started", err)
	}
	defer func() {
		if cerr := m.Close(); cerr != nil {
			err = errors.Join(failed("the guest is not gone", cerr), err)
		}
	}()
	for i, f := range files {
		if err := m.Put(ctx, folders[i], f); err != nil {
			return failed("a file cannot be copied into the guest", err)
		}
	}
	res, err := m.Run(ctx, link.Command{Argv: argv, Dir: r.dir}, r.timeout, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return failed("the command has no result", err)
	}
	if len(r.get) > 0 { // also of a command that failed: it may have written why
		if err := m.Get(ctx, r.out, maxOut, r.get...); err != nil {
			return failed("a file cannot be copied out of the guest", err)
		}
	}
	switch {
	case res.Error != "":
		return &exit.Error{Status: exit.Failed, Sentence: "the command did not start: " + res.Error, Remedy: "name a program that the guest has, or copy it in with --put"}
	case res.TimedOut:
		return &exit.Error{Status: exit.Incomplete, Sentence: fmt.Sprintf("the command did not end in %s", r.timeout), Remedy: "give it more with --timeout"}
	case res.Signal != "":
		return &exit.Error{Status: exit.Negative, Sentence: "the command was ended by a signal: " + res.Signal, Remedy: "read " + filepath.Join(r.out, "console.log")}
	case res.Code != 0:
		return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("the command ended with status %d", res.Code), Remedy: "read what it printed, above"}
	}
	return nil
}
