// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

const environmentPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// mounts are the file systems of a running Linux, in order.
var mounts = []struct {
	fstype, dir, data string
	flags             uintptr
}{
	{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID},
	{"devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
	{"tmpfs", "/dev/shm", "", unix.MS_NOSUID | unix.MS_NODEV},
	{"tmpfs", "/run", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
	{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	{"cgroup2", "/sys/fs/cgroup", "nsdelegate", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
}

func mountAll() error {
	unix.Umask(0o022)
	for _, m := range mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	// As service managers do: a mount that a worker makes must be seen by an engine that has gone before.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// attachConsole makes the console the standard streams; the kernel had no /dev when it started PID 1.
func attachConsole() error {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open console: %w", err)
	}
	for i := range 3 {
		if fd != i {
			if err := unix.Dup3(fd, i, 0); err != nil {
				return fmt.Errorf("open console: %w", err)
			}
		}
	}
	if fd > 2 {
		return unix.Close(fd)
	}
	return nil
}

// modules are what the disks, the engine, the loop backend, the network oracle and the quota file systems need and the
// distribution's kernel has as modules.
var modules = []string{"virtio_blk", "overlay", "loop", "quota_v2", "xfs", "bridge", "veth", "af_packet"}

func prepare() error {
	if err := os.Setenv("PATH", environmentPath); err != nil {
		return err
	}
	if err := limits(); err != nil {
		return err
	}
	if err := ownCgroup(); err != nil {
		return err
	}
	for file, value := range map[string]string{
		"/proc/sys/kernel/hostname": "hallmark-guest", "/proc/sys/kernel/pid_max": "4194304",
		"/proc/sys/fs/inotify/max_user_instances": "1024",
	} {
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			return err
		}
	}
	if err := run("modprobe", append([]string{"-a"}, modules...)...); err != nil {
		return err
	}
	mark("modules")
	if err := run("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	return quotaDisks()
}

// limits are those that the distribution's service manager gives a container engine.
func limits() error {
	for which, value := range map[int]uint64{unix.RLIMIT_NOFILE: 1 << 20, unix.RLIMIT_NPROC: unix.RLIM_INFINITY, unix.RLIMIT_CORE: 0, unix.RLIMIT_MEMLOCK: 8 << 20} {
		if err := unix.Setrlimit(which, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("set limit %d: %w", which, err)
		}
	}
	return nil
}

// ownCgroup leaves the root of the hierarchy, which may then hand all its controllers down; the engine says that
// there are no limits of swap otherwise.
func ownCgroup() error {
	const root = "/sys/fs/cgroup"
	if err := os.Mkdir(root+"/init", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(root+"/init/cgroup.procs", []byte("1"), 0); err != nil {
		return err
	}
	have, err := os.ReadFile(root + "/cgroup.controllers")
	if err != nil {
		return err
	}
	var want []string
	for _, c := range strings.Fields(string(have)) {
		want = append(want, "+"+c)
	}
	return os.WriteFile(root+"/cgroup.subtree_control", []byte(strings.Join(want, " ")), 0)
}

// quotaDisks makes the file systems whose project quota is enforced, each on the disk with its name as serial number.
func quotaDisks() error {
	mkfs := map[string][]string{
		"ext4": {"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"},
		"xfs":  {"mkfs.xfs", "-q"},
	}
	for _, fstype := range link.Disks {
		device, err := diskOf(fstype)
		if err != nil {
			return err
		}
		if err := run(mkfs[fstype][0], append(mkfs[fstype][1:], device)...); err != nil {
			return err
		}
		dir := filepath.Join("/quota", fstype)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(device, dir, fstype, 0, "prjquota"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
		mark("%s with project quota", fstype)
	}
	return nil
}

func diskOf(serial string) (string, error) {
	files, err := filepath.Glob("/sys/block/*/serial")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(f)), nil
		}
	}
	return "", fmt.Errorf("there is no disk %q", serial)
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
