// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// systemContainerd is where a containerd that a service manager runs listens.
const systemContainerd = "/run/containerd/containerd.sock"

// shimName is the shim that engines since 20.10 start a runtime with.
const shimName = "containerd-shim-runc-v2"

type programs struct{ engine, containerd, shim string } // sha256:<hex>

// enginePrograms digests what runs now, through /proc/<pid>/exe: a file that has
// been replaced since its process started would otherwise be measured instead.
func enginePrograms(engine int, digest func(path string) (string, error)) (programs, error) {
	var p programs
	var err error
	if p.engine, err = digest(procExe(engine)); err != nil {
		return p, fmt.Errorf("engine program: %w", err)
	}
	containerd, err := containerdPid(engine)
	if err != nil {
		return p, err
	}
	if p.containerd, err = digest(procExe(containerd)); err != nil {
		return p, fmt.Errorf("containerd program: %w", err)
	}
	shim, err := shimPath(containerd)
	if err != nil {
		return p, err
	}
	if p.shim, err = digest(shim); err != nil {
		return p, fmt.Errorf("shim program: %w", err)
	}
	return p, nil
}

func procExe(pid int) string { return fmt.Sprintf("/proc/%d/exe", pid) }

// containerdPid is the engine's own child when it manages containerd, else the
// process behind the system's containerd socket.
func containerdPid(engine int) (int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, fmt.Errorf("find containerd: %w", err)
	}
	for _, path := range stats {
		pid, ppid, err := parent(path)
		if err != nil || ppid != engine {
			continue
		}
		if exe, err := os.Readlink(procExe(pid)); err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "containerd" {
			return pid, nil
		}
	}
	conn, err := net.DialTimeout("unix", systemContainerd, 5*time.Second)
	if err != nil {
		return 0, fmt.Errorf("find containerd: the engine has no such child: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("find containerd: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("find containerd: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("find containerd: %w", credErr)
	}
	return int(cred.Pid), nil
}

// parent reads pid and parent pid from a /proc/<pid>/stat file (proc_pid_stat(5)).
func parent(path string) (pid, ppid int, err error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(body[bytes.LastIndexByte(body, ')')+1:]))
	if len(fields) < 2 {
		return 0, 0, errors.New("short stat line")
	}
	if pid, err = strconv.Atoi(filepath.Base(filepath.Dir(path))); err != nil {
		return 0, 0, err
	}
	ppid, err = strconv.Atoi(fields[1])
	return pid, ppid, err
}

// shimPath finds the shim as containerd does: on its PATH, then beside itself.
func shimPath(containerd int) (string, error) {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", containerd))
	if err != nil {
		return "", fmt.Errorf("find shim: %w", err)
	}
	var dirs []string
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if path, ok := bytes.CutPrefix(kv, []byte("PATH=")); ok {
			dirs = filepath.SplitList(string(path))
		}
	}
	if exe, err := os.Readlink(procExe(containerd)); err == nil {
		dirs = append(dirs, filepath.Dir(exe))
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, shimName)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errors.New("find shim: " + shimName + " is neither on containerd's PATH nor beside it")
}

func digestPath(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// pathlessArgs replaces each absolute path in a runtime's arguments by what it
// names: a file by its digest, a folder by the word "folder", nothing by "absent".
func pathlessArgs(args []string, digest func(path string) (string, error)) ([]string, error) {
	out := []string{}
	for _, a := range args {
		flag, value, hasValue := strings.Cut(a, "=")
		path := a
		if hasValue {
			path = value
		}
		if !filepath.IsAbs(path) {
			out = append(out, a)
			continue
		}
		what := "absent"
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			if what, err = digest(path); err != nil {
				return nil, err
			}
		} else if err == nil {
			what = "folder"
		}
		if hasValue {
			what = flag + "=" + what
		}
		out = append(out, what)
	}
	return out, nil
}

// runtimeVersion is the runtime's own first line of "--version", its last word. It names
// a build for readers; the digest identifies it.
func runtimeVersion(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return Unknown
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return first[strings.LastIndexByte(first, ' ')+1:]
}

// platform is what the registration asks for. Without the argument the binary
// decides, and its digest is in the descriptor: "default".
func platform(args []string) string {
	for i, a := range args {
		name, value, ok := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if name != "platform" {
			continue
		}
		if ok {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return "default"
}
