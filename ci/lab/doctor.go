// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Check is one thing that a lab needs of the machine.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"` // when not OK
	// Required is false for what the lab gets by itself or can do without.
	Required bool `json:"required"`
}

// fetchers are the programs that fetch; with go they are what a machine can do without whose cache was filled elsewhere.
var fetchers = []string{"apt-get", "apt-cache", "dpkg-deb", "dpkg"}

// Examine looks at the machine and changes nothing. The order is that of CheckMachine.
func Examine(cache string) []Check {
	out := []Check{checkRoot()}
	for _, tool := range fetchers {
		out = append(out, checkTool(tool, true, "run this on Debian 12 or newer, or on Ubuntu"))
	}
	out = append(out,
		checkTool("go", true, "install Go 1.26 or newer and put it on PATH"),
		checkOpenat2(), checkCgroups(), checkLoop(), checkFilesystem("overlay"), checkFilesystem("ext4"),
	)
	for _, t := range smallTools {
		out = append(out, checkTool(t.name, false, "apt-get install "+t.pkg+" (make conformance does it, and says so before)"))
	}
	python := checkTool("python3", false, "apt-get install python3-minimal; needed by `hallmark alternatives bubblewrap` only")
	if python.OK {
		python.Detail += ", for the alternative bubblewrap only"
	}
	return append(out, python, checkEngine(), checkCached(cache))
}

// CheckMachine says what stops a lab on this machine for good, as a
// *[MissingError]: the first required check that fails.
func CheckMachine() error { return checkMachine(false) }

// checkMachine leaves out what fetches and builds when all of that is provided.
func checkMachine(provided bool) error {
	for _, c := range Examine("") {
		if c.Required && !c.OK && !(provided && (c.Name == "go" || slices.Contains(fetchers, c.Name))) {
			return &MissingError{What: c.Name + ": " + c.Detail, Remedy: c.Remedy}
		}
	}
	return nil
}

func checkRoot() Check {
	c := Check{Name: "root", OK: os.Geteuid() == 0, Required: true, Detail: "running as root"}
	if !c.OK {
		c.Detail = "not root, and the lab starts a container engine, mounts and cgroups"
		c.Remedy = "run this as root, for instance with sudo"
	}
	return c
}

func checkTool(name string, required bool, remedy string) Check {
	path, ok := lookInstalled(name)
	if ok {
		return Check{Name: name, OK: true, Required: required, Detail: path}
	}
	return Check{Name: name, Required: required, Detail: "not found on PATH", Remedy: remedy}
}

// checkOpenat2 tries it: workspaces are served through it and there is no fallback.
func checkOpenat2() Check {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		unix.Close(fd)
	}
	// RESOLVE_BENEATH refuses an absolute path with EXDEV: that is the answer of a kernel that has the call.
	if err == nil || err == unix.EXDEV {
		return Check{Name: "openat2", OK: true, Required: true, Detail: "the kernel has it"}
	}
	return Check{Name: "openat2", Required: true, Detail: err.Error(), Remedy: "use Linux 5.6 or newer, outside of a container whose seccomp profile forbids openat2"}
}

func checkCgroups() Check {
	c := Check{Name: "cgroups", Required: true, Remedy: "mount the cgroup file systems (a container needs its own writable ones)"}
	roots, err := cgroupRoots()
	if err != nil || len(roots) == 0 {
		c.Detail = "no cgroup hierarchy is mounted"
		return c
	}
	for _, r := range roots {
		if unix.Access(r, unix.W_OK) != nil {
			c.Detail = r + " is not writable"
			return c
		}
	}
	return Check{Name: "cgroups", OK: true, Required: true, Detail: fmt.Sprintf("%s, %d hierarchies", cgroupMode(), len(roots))}
}

func checkLoop() Check {
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return Check{Name: "loop", Required: true, Detail: err.Error(), Remedy: "load the loop module (modprobe loop), or give the container /dev/loop-control and loop devices"}
	}
	f.Close()
	return Check{Name: "loop", OK: true, Required: true, Detail: "/dev/loop-control can be opened"}
}

// checkFilesystem is not required: a kernel may load the module at the first mount.
func checkFilesystem(name string) Check {
	body, err := os.ReadFile("/proc/filesystems")
	if err == nil && slices.Contains(strings.Fields(string(body)), name) {
		return Check{Name: "filesystem " + name, OK: true, Detail: "the kernel has it"}
	}
	return Check{Name: "filesystem " + name, Detail: "not registered with the kernel now", Remedy: "modprobe " + name + ", unless the kernel loads it by itself"}
}

func checkEngine() Check {
	if path, ok := lookInstalled("dockerd"); ok {
		return Check{Name: "engine", OK: true, Detail: path + " is used as a program; its service and configuration stay as they are"}
	}
	return Check{Name: "engine", OK: true, Detail: "none is installed: the distribution's is extracted into the cache"}
}

func checkCached(cache string) Check {
	c := Check{Name: "cache", OK: true, Detail: "nothing is cached yet: the first run needs the network"}
	_, errRunsc := os.Stat(filepath.Join(cache, "runtimes", "runsc.json"))
	_, errPkgs := os.Stat(filepath.Join(cache, "packages", indexFile))
	switch {
	case cache == "":
		c.Detail = "not looked at"
	case errRunsc == nil && errPkgs == nil:
		c.Detail = "packages and runsc are in " + cache
	case errPkgs == nil:
		c.Detail = "packages are in " + cache + "; runsc is not built yet"
	}
	return c
}

// smallTools are what the reference worker runs and a minimal system may lack.
// They read their own libraries and configuration: they are installed, not extracted.
var smallTools = []struct{ name, pkg string }{{"mkfs.ext4", "e2fsprogs"}, {"e2fsck", "e2fsprogs"}, {"debugfs", "e2fsprogs"}, {"mount", "mount"}, {"umount", "mount"}}

// installSmallTools installs the packages of missing small tools, and says so before.
func (p *packages) installSmallTools(ctx context.Context) error {
	var need []string
	for _, t := range smallTools {
		if _, ok := lookInstalled(t.name); !ok && !slices.Contains(need, t.pkg) {
			need = append(need, t.pkg)
		}
	}
	if len(need) == 0 {
		return nil
	}
	fmt.Fprintf(p.out, "lab: installing %s with apt-get, which the worker needs and which cannot be run from the cache\n", strings.Join(need, ", "))
	install := func() ([]byte, error) {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "install", "-y", "--no-install-recommends"}, need...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		return cmd.CombinedOutput()
	}
	out, err := install()
	if err != nil && !p.updated {
		if uerr := p.update(ctx); uerr != nil {
			return uerr
		}
		out, err = install()
	}
	if err != nil {
		return &MissingError{What: "cannot install " + strings.Join(need, ", ") + ": " + lastLine(out), Remedy: "install them by hand"}
	}
	return nil
}
