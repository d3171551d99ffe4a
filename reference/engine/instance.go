// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Instance names the engine's process: boot id, pid and start time. It changes whenever
// the engine restarts, and then no request that the old one took can still be in flight.
func (e *Engine) Instance(ctx context.Context) (string, error) {
	pid, err := e.Pid(ctx)
	if err != nil {
		return "", err
	}
	start, err := startTime(pid)
	if err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return fmt.Sprintf("%s/%d/%s", strings.TrimSpace(string(boot)), pid, start), nil
}

// SameBoot reports whether two values of [Engine.Instance] are of one boot of the host: what was in
// flight before another one is not any more.
func SameBoot(a, b string) bool {
	x, _, _ := strings.Cut(a, "/")
	y, _, _ := strings.Cut(b, "/")
	return x == y
}

// Pid is the engine's process: the one in the pid file, or the one that listens on the
// socket (SO_PEERCRED, unix(7): the credentials of the listener at listen time).
func (e *Engine) Pid(ctx context.Context) (int, error) {
	if e.cfg.PidFile != "" {
		text, err := os.ReadFile(e.cfg.PidFile)
		if err != nil {
			return 0, fmt.Errorf("read engine pid: %w", err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || pid <= 1 {
			return 0, fmt.Errorf("engine pid file holds %q", strings.TrimSpace(string(text)))
		}
		return pid, nil
	}
	d := net.Dialer{Timeout: queryDeadline}
	conn, err := d.DialContext(ctx, "unix", e.cfg.Socket)
	if err != nil {
		return 0, fmt.Errorf("dial engine: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("engine socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return 0, fmt.Errorf("engine peer credentials: %w", errors.Join(err, credErr))
	}
	if cred.Pid <= 0 {
		return 0, errors.New("engine's process is not visible from here")
	}
	return int(cred.Pid), nil
}

// Mountinfo is the path of the engine's own mount table.
func (e *Engine) Mountinfo() (string, error) {
	pid, err := e.Pid(context.Background())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/mountinfo", pid), nil
}

// startTime is field 22 of /proc/pid/stat (proc_pid_stat(5)), in clock ticks after boot.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("read engine start time: %w", err)
	}
	// The command may hold spaces and brackets: count from the last one.
	i := strings.LastIndexByte(string(text), ')')
	if i < 0 {
		return "", errors.New("engine's stat line has no command")
	}
	fields := strings.Fields(string(text[i+1:]))
	if len(fields) < 20 {
		return "", errors.New("engine's stat line is short")
	}
	return fields[19], nil
}

// Info returns the engine's facts for the cohort.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
	defer cancel()
	in, err := e.cli.Info(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("engine info: %w", err)
	}
	version, err := e.cli.ServerVersion(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("engine version: %w", err)
	}
	pid, err := e.Pid(ctx)
	if err != nil {
		return Info{}, err
	}
	instance, err := e.Instance(ctx)
	if err != nil {
		return Info{}, err
	}
	rt := in.Runtimes[e.cfg.Runtime]
	out := Info{
		APIVersion: version.APIVersion, Version: in.ServerVersion, Components: map[string]string{},
		StorageDriver: in.Driver, ImageStore: "classic", DataRoot: in.DockerRootDir,
		CgroupVersion: in.CgroupVersion, CgroupDriver: in.CgroupDriver,
		SecurityOptions: append([]string{}, in.SecurityOptions...), DefaultRuntime: in.DefaultRuntime,
		RuntimePath: rt.Path, RuntimeArgs: append([]string{}, rt.Args...), SwapLimit: in.SwapLimit,
		KernelVersion: in.KernelVersion, InstancePid: pid, Instance: instance,
		LiveRestore: in.LiveRestoreEnabled, OperatingSystem: in.OperatingSystem, ExperimentalMode: in.ExperimentalBuild,
	}
	sort.Strings(out.SecurityOptions)
	for _, c := range version.Components {
		out.Components[c.Name] = c.Version
	}
	for _, row := range in.DriverStatus {
		if row[0] == "driver-type" && strings.HasPrefix(row[1], "io.containerd.snapshotter") {
			out.ImageStore = "containerd"
		}
	}
	for _, o := range in.SecurityOptions {
		if strings.HasPrefix(o, "name=userns") {
			out.UsernsRemapped = true
		}
	}
	return out, nil
}
