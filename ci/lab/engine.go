// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/network"
	"golang.org/x/sys/unix"
)

// startBound is how long the engine may take to answer; it takes about 2 s here.
const startBound = 90 * time.Second

// engineConfig is the content of daemon.json. The engine sees no other configuration.
func (t territory) engineConfig(runtimes map[string]Runtime) ([]byte, error) {
	type registration struct {
		Path string   `json:"path"`
		Args []string `json:"runtimeArgs,omitempty"`
	}
	reg := map[string]registration{}
	for name, r := range runtimes {
		if name != RuntimeRunc { // a reserved name: the engine finds its own on PATH
			reg[name] = registration{r.Path, r.Args}
		}
	}
	return json.MarshalIndent(map[string]any{
		"hosts":     []string{"unix://" + t.socket()},
		"pidfile":   filepath.Join(t.runDir, "dockerd.pid"),
		"exec-root": t.runDir, // runsc keeps its sockets and state below it
		"data-root": t.dataRoot(),
		"bridge":    "none",
		"iptables":  false, "ip6tables": false, "ip-forward": false, "ip-masq": false, "userland-proxy": false,
		"cgroup-parent": t.cgroup, "exec-opts": []string{"native.cgroupdriver=cgroupfs"},
		"runtimes":         reg,
		"features":         map[string]bool{"containerd-snapshotter": false}, // image id = config digest
		"live-restore":     false,
		"shutdown-timeout": 5,
		"log-level":        "warn",
	}, "", "  ")
}

// startEngine starts dockerd in its own session, network namespace and cgroup, in
// the host's mount namespace: workspaces that a worker mounts must be visible to
// it. It returns when the API answers.
func (t territory) startEngine(ctx context.Context, l *Lab, tools toolset) error {
	log, err := os.OpenFile(t.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open engine log: %w", err)
	}
	defer log.Close()
	joins, err := t.engineCgroup()
	if err != nil {
		return err
	}
	// The shell joins the cgroups before it becomes dockerd, so that no child can escape them.
	const script = `n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1"; shift; n=$((n-1)); done; exec "$@"`
	args := append([]string{"-ec", script, "sh", strconv.Itoa(len(joins))}, joins...)
	// The namespaces are short, see newTerritory, and flags: the configuration file's name for the
	// second one is not the one that the engine's own check of that file expects.
	args = append(args, tools.engine.Path, "--config-file", filepath.Join(t.runDir, "daemon.json"),
		"--containerd-namespace", "hl", "--containerd-plugins-namespace", "hlp")
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = "/"
	cmd.Env = tools.environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startInNewNetNS(cmd); err != nil {
		return fmt.Errorf("start engine: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()

	l.EnginePid = cmd.Process.Pid
	if l.EngineStart, err = startTime(l.EnginePid); err != nil {
		return t.engineFailed(err)
	}
	if l.NetNSInode, err = netnsInode(l.EnginePid); err != nil {
		return t.engineFailed(err)
	}
	l.NetNS = fmt.Sprintf("/proc/%d/ns/net", l.EnginePid)
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	cli, err := l.Client()
	if err != nil {
		return err
	}
	defer cli.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err = cli.Ping(ctx); err == nil {
			break
		}
		select {
		case err := <-exited:
			return t.engineFailed(fmt.Errorf("it ended: %w", err))
		case <-ctx.Done():
			return t.engineFailed(errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
	// Masquerading is off: nothing leaves the lab's own network namespace, which has no uplink anyway.
	_, err = cli.NetworkCreate(ctx, NetworkName, network.CreateOptions{
		Driver:  "bridge",
		IPAM:    &network.IPAM{Config: []network.IPAMConfig{{Subnet: "10.213.0.0/24"}}},
		Options: map[string]string{"com.docker.network.bridge.name": "hl0", "com.docker.network.bridge.enable_ip_masquerade": "false"},
	})
	if err != nil {
		return t.engineFailed(fmt.Errorf("create network: %w", err))
	}
	return nil
}

func (t territory) logPath() string { return filepath.Join(t.dir, "dockerd.log") }

// engineFailed adds the end of the engine's log, which is swept with the rest.
func (t territory) engineFailed(cause error) error {
	body, err := os.ReadFile(t.logPath())
	if err != nil {
		return fmt.Errorf("start engine: %w", cause)
	}
	lines := strings.Split(strings.TrimSpace(string(body)), "\n")
	return fmt.Errorf("start engine: %w; its log ends: %s", cause, strings.Join(lines[max(0, len(lines)-3):], " | "))
}

// startInNewNetNS starts cmd in a new network namespace with loopback up. The
// namespace lives as long as its processes: there is no name to leave behind.
func startInNewNetNS(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() { done <- onSpareThread(func() error { return unshareAndStart(cmd) }) }()
	return <-done
}

// onSpareThread runs f on a thread that ends with the calling goroutine. The
// main thread cannot end, and would stay in the lab's namespace: when the
// goroutine sits there, it holds that thread and has another one do the work.
func onSpareThread(f func() error) error {
	runtime.LockOSThread() // not unlocked on the way that runs f
	if unix.Gettid() != unix.Getpid() {
		return f()
	}
	done := make(chan error)
	go func() { done <- onSpareThread(f) }()
	err := <-done
	runtime.UnlockOSThread()
	return err
}

func unshareAndStart(cmd *exec.Cmd) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	return cmd.Start() // the child inherits this thread's namespace
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}

// engineCgroup makes <parent>/engine in each hierarchy and returns the files that
// a process writes itself into. A v1 cpuset cannot be joined before it has CPUs
// and is not needed: one hierarchy is enough to find a process by.
func (t territory) engineCgroup() ([]string, error) {
	roots, err := cgroupRoots()
	if err != nil {
		return nil, err
	}
	var joins []string
	for _, r := range roots {
		if _, err := os.Stat(filepath.Join(r, "cpuset.cpus")); err == nil {
			if _, v2 := os.Stat(filepath.Join(r, "cgroup.controllers")); v2 != nil {
				continue
			}
		}
		dir := filepath.Join(r, t.cgroup, "engine")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		if err := handDown(r, filepath.Dir(dir)); err != nil {
			return nil, fmt.Errorf("make cgroup: %w", err)
		}
		joins = append(joins, filepath.Join(dir, "cgroup.procs"))
	}
	if len(joins) == 0 {
		return nil, &MissingError{What: "no cgroup hierarchy is mounted", Remedy: "mount cgroup2 at /sys/fs/cgroup"}
	}
	return joins, nil
}

// handDown gives the children of a cgroup of the unified hierarchy every controller that the hierarchy's root hands
// down. The engine asks its own cgroup what there is: without them it says that there is no limit of swap.
func handDown(root, dir string) error {
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // v1 has no such file
	}
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return err
		}
	}
	return nil
}

// cgroupMode returns "v2" when /sys/fs/cgroup is the unified hierarchy (cgroups(7)), else "v1".
func cgroupMode() string {
	var st unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v2"
	}
	return "v1"
}
