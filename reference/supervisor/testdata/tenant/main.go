// SPDX-License-Identifier: Apache-2.0

// Command tenant is what the tests of package supervisor run inside a sandbox: it looks at its own
// process, or misbehaves in one way. It is built static and needs nothing around it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		return
	}
	verbs := map[string]func([]string){
		"look": look, "exit": func(a []string) { os.Exit(num(a[0])) }, "die": die, "write": write, "cat": func([]string) { io.Copy(os.Stdout, os.Stdin) },
		"beat": beat, "stubborn": stubborn, "daemon": daemon, "stopped": stopped, "reaper": reaper, "bomb": bomb, "runner": runner,
		"hold": hold, "crowd": crowd, "flood": flood, "farm": farm, "pass": pass, "keep": keep, "attack": attack, "count": count, "sleep": func(a []string) { time.Sleep(time.Duration(num(a[0])) * time.Millisecond) },
		"slay": slay, "others": others, "suicide": suicide, "dial": dial, "dead": dead, "continuer": continuer, "escape": escape,
		"secret": secret, "zleader": zleader, "stopper": stopper, "sigroot": sigroot,
	}
	maps.Copy(verbs, survivors())
	verb, ok := verbs[args[0]]
	if !ok {
		fatal("unknown verb " + args[0])
	}
	verb(args[1:])
}

func fatal(v any) { fmt.Fprintln(os.Stderr, v); os.Exit(99) }

func num(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fatal(err)
	}
	return n
}

// look prints what a process of the tenant is.
func look(a []string) {
	out := map[string]any{"args": a, "env": os.Environ(), "uid": os.Getuid(), "gid": os.Getgid(), "pid": os.Getpid(), "ppid": os.Getppid()}
	groups, _ := os.Getgroups()
	out["groups"] = len(groups)
	out["cwd"], _ = os.Getwd()
	sid, _ := unix.Getsid(0)
	out["sid"], out["pgid"] = sid, unix.Getpgrp()
	nnp, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	out["nnp"] = nnp
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if name, value, ok := strings.Cut(line, ":"); ok && (strings.HasPrefix(name, "Cap") || strings.HasPrefix(name, "Sig")) {
			out[name] = strings.TrimSpace(value)
		}
	}
	// Descriptors by asking, not by listing: the runtime's own poller opens none before this.
	open := []int{}
	for fd := range 65536 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			kind, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
			if fd > 2 && flags&unix.FD_CLOEXEC != 0 && (strings.Contains(kind, "eventpoll") || strings.Contains(kind, "eventfd")) {
				continue // made by this process
			}
			open = append(open, fd)
		}
	}
	out["fds"] = open
	json.NewEncoder(os.Stdout).Encode(out)
}

// secret waits, reads descriptor 3 to its end, says what it got in a file, and waits again.
func secret(a []string) {
	time.Sleep(time.Duration(num(a[0])) * time.Millisecond)
	b, err := io.ReadAll(os.NewFile(3, "secret"))
	if err != nil {
		fatal(err)
	}
	home := os.Getenv("HOME")
	var fs unix.Statfs_t
	unix.Statfs(home, &fs)
	entries, err := os.ReadDir(home)
	st, _ := os.Stat(home)
	pipe, _ := os.Readlink("/proc/self/fd/3")
	json.NewEncoder(os.Stdout).Encode(map[string]any{"secret": b, "home": home, "tmpfs": fs.Type == unix.TMPFS_MAGIC, "entries": len(entries), "error": err != nil, "mode": st.Mode().Perm()})
	if len(a) > 1 {
		os.WriteFile("held.new", []byte(pipe), 0o644)
		os.Rename("held.new", "held")
		time.Sleep(time.Duration(num(a[1])) * time.Millisecond)
	}
}

func die(a []string) {
	unix.Kill(os.Getpid(), syscall.Signal(num(a[0])))
	time.Sleep(time.Hour)
}

// write N bytes to stdout and M to stderr.
func write(a []string) {
	for i, f := range []*os.File{os.Stdout, os.Stderr} {
		f.Write(bytes.Repeat([]byte{byte('a' + i)}, num(a[i])))
	}
}

// beat appends a byte to a file every 5 ms.
func beat(a []string) {
	f, err := os.OpenFile(a[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fatal(err)
	}
	for {
		f.Write([]byte{'.'})
		time.Sleep(5 * time.Millisecond)
	}
}

// stubborn beats and ignores what can be ignored.
func stubborn(a []string) {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1)
	beat(a)
}

func spawn(sid bool, args ...string) *exec.Cmd {
	self, _ := os.Executable()
	c := exec.Command(self, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: sid}
	if err := c.Start(); err != nil {
		fatal(err)
	}
	return c
}

// daemon leaves a stubborn process behind, by a double fork with sessions and closed descriptors.
func daemon(a []string) {
	if len(a) == 2 { // the middle
		spawn(true, "stubborn", a[0])
		waitFor(a[0])
		return
	}
	spawn(true, "daemon", a[0], "middle").Wait()
}

func waitFor(file string) {
	for range 2000 {
		if st, err := os.Stat(file); err == nil && st.Size() > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	fatal("no " + file)
}

// stopped leaves a stopped child behind.
func stopped(a []string) {
	c := spawn(true, "beat", a[0]) // own session: the kernel continues an orphaned group's members
	waitFor(a[0])
	c.Process.Signal(unix.SIGSTOP)
}

// reaper leaves a subreaper with orphans below it.
func reaper(a []string) {
	if len(a) == 2 {
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		spawn(true, "daemon", a[0])
		time.Sleep(time.Hour)
	}
	spawn(true, "reaper", a[0], "middle")
	waitFor(a[0])
}

// bomb forks without end, "leave": while its leader ends; "scatter": into sessions of their own as well.
func bomb(a []string) {
	how := strings.Join(a, "")
	if how == "leave" || how == "scatter" { // tell how far it got, then leave the rest running
		if rawFork() != 0 {
			time.Sleep(300 * time.Millisecond)
			fmt.Println(processes())
			return
		}
	}
	for {
		if rawFork() == 0 && how == "scatter" {
			syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		}
	}
}

func processes() int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	return len(names)
}

func count([]string) { fmt.Println(processes()) }

// rawFork gives a child with one thread, which may use raw system calls only.
//
//go:norace
func rawFork() uintptr {
	pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	return pid
}

// crowd forks processes that wait until no more can be made, says so, and takes every place that is left from then on.
func crowd(a []string) {
	for refused := 0; ; {
		switch pid := rawFork(); {
		case pid == 0:
			for {
				syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		case int(pid) < 0:
			if refused++; refused == 20 {
				os.WriteFile(a[0], []byte("."), 0o644)
			}
			time.Sleep(time.Millisecond) // what others have begun to make or end
		}
	}
}

// runner leaves a process that forks into a new session and exits, again and again.
func runner(a []string) {
	n := num(a[0])
	for range n {
		if rawFork() == 0 {
			for {
				syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
				if rawFork() != 0 {
					syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
				}
			}
		}
	}
	time.Sleep(50 * time.Millisecond)
}

// continuer leaves processes behind that continue everything that was stopped.
func continuer(a []string) {
	for range num(a[0]) {
		if rawFork() == 0 {
			for {
				syscall.RawSyscall(syscall.SYS_KILL, ^uintptr(0), uintptr(syscall.SIGCONT), 0)
			}
		}
	}
	time.Sleep(20 * time.Millisecond)
}

// hold leaves a child with the pipes open and exits 0 after one line.
func hold([]string) {
	fmt.Println("held")
	self, _ := os.Executable()
	c := exec.Command(self, "sleep", "600000")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Start()
}

// flood writes blocks of n bytes to both streams for ever.
func flood(a []string) {
	block := bytes.Repeat([]byte{'x'}, num(a[0]))
	go func() {
		for {
			os.Stderr.Write(block)
		}
	}()
	for {
		os.Stdout.Write(block)
	}
}

// farm makes n zombies and waits.
func farm(a []string) {
	for range num(a[0]) {
		if rawFork() == 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	fmt.Println(processes())
}

// pass hands its stdout to the keeper process of another invocation.
func pass(a []string) {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: a[0], Net: "unixgram"})
	if err != nil {
		fatal(err)
	}
	fmt.Println("passed")
	raw, _ := c.SyscallConn()
	raw.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), []byte{1}, unix.UnixRights(1), nil, 0)
		return true
	})
	if err != nil {
		fatal(err)
	}
	waitFor(a[0] + ".got")
}

// keep receives a descriptor and writes to it for ever.
func keep(a []string) {
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: a[0], Net: "unixgram"})
	if err != nil {
		fatal(err)
	}
	oob := make([]byte, 128)
	_, n, _, _, err := l.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		fatal(err)
	}
	msgs, _ := unix.ParseSocketControlMessage(oob[:n])
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		fatal(err)
	}
	signal.Ignore(unix.SIGPIPE)
	os.WriteFile(a[0]+".got", []byte("x"), 0o644)
	block := bytes.Repeat([]byte{'k'}, 4096)
	for {
		if _, err := unix.Write(fds[0], block); err != nil {
			fmt.Println("lost the pipe:", err)
			return
		}
	}
}

// attack tries what must fail against every process of root's, and prints what did not fail.
func attack([]string) {
	got := []string{}
	targets := rootProcesses()
	if !slices.Contains(targets, 1) || !slices.Contains(targets, os.Getppid()) || len(targets) < 4 {
		fatal(fmt.Sprint("PID 1, keepers and the bridge are not among ", targets))
	}
	// What is tried against root's has to work against a process of one's own, or its failure says nothing.
	if mine := reach(os.Getpid()); len(mine) != 4 {
		fatal(fmt.Sprint("of one's own process only this is reached: ", mine))
	}
	for _, pid := range targets {
		got = append(got, reach(pid)...)
		try := func(name string, err error) {
			if err == nil {
				got = append(got, fmt.Sprintf("%s %d", name, pid))
			}
		}
		for _, sig := range []unix.Signal{0, unix.SIGTERM, unix.SIGKILL, unix.SIGSTOP} {
			try("kill", unix.Kill(pid, sig))
		}
		try("ptrace", unix.PtraceSeize(pid))
		for _, file := range []string{"mem", "environ", "oom_score_adj"} {
			f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, file), os.O_WRONLY, 0)
			try("write "+file, err)
			f.Close()
		}
		_, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		try("fd", err)
		var lim unix.Rlimit
		try("prlimit", unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}, &lim))
	}
	json.NewEncoder(os.Stdout).Encode(got)
}

// rootProcesses lists the processes of uid 0.
func rootProcesses() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		if st, err := os.Stat(name); err == nil && st.Sys().(*syscall.Stat_t).Uid == 0 {
			pids = append(pids, num(filepath.Base(name)))
		}
	}
	return pids
}

// reach tells in which ways the memory of a process can be reached. EFAULT says so too: the address need not be there.
func reach(pid int) (got []string) {
	hit := func(name string, err error) {
		if err == nil || errors.Is(err, unix.EFAULT) {
			got = append(got, fmt.Sprintf("%s %d", name, pid))
		}
	}
	for _, file := range []string{"environ", "mem"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
		hit("read "+file, err)
		f.Close()
	}
	word := make([]byte, 1)
	local := []unix.Iovec{{Base: &word[0], Len: 1}}
	remote := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&word[0])), Len: 1}}
	_, err := unix.ProcessVMReadv(pid, local, remote, 0)
	hit("process_vm_readv", err)
	_, err = unix.ProcessVMWritev(pid, local, remote, 0)
	hit("process_vm_writev", err)
	return got
}

// dial tries the control socket by several paths and prints each error.
func dial([]string) {
	os.Symlink("/run/hallmark/control.sock", "link.sock")
	for _, path := range []string{"/run/hallmark/control.sock", "/proc/1/root/run/hallmark/control.sock", "link.sock"} {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		}
		fmt.Println(path, err)
	}
}

// dead connects as root, queues what it read from stdin and exits without reading.
func dead([]string) {
	b, _ := io.ReadAll(os.Stdin)
	c, err := net.Dial("unix", "/run/hallmark/control.sock")
	if err != nil {
		fatal(err)
	}
	c.Write(b)
	os.Exit(0)
}

// escape asks for what a tenant must not get.
func escape([]string) {
	fmt.Println(unix.Setuid(0), unix.Setgroups([]int{0}), unix.Setresgid(0, 0, 0))
}

// slay kills, as root, every process whose second argument is a[0].
func slay(a []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if b, _ := os.ReadFile(name); bytes.HasSuffix(b, []byte("\x00"+a[0]+"\x00")) {
			pid := num(strings.Split(name, "/")[2])
			if pid != os.Getpid() {
				fmt.Println(pid, unix.Kill(pid, unix.SIGKILL))
			}
		}
	}
}

// others prints the pids of this uid's processes but its own.
func others([]string) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		st, err := os.Stat(name)
		if pid := num(filepath.Base(name)); err == nil && int(st.Sys().(*syscall.Stat_t).Uid) == os.Getuid() && pid != os.Getpid() {
			fmt.Println(pid)
		}
	}
}

// suicide kills its only child and exits without waiting for it.
func suicide([]string) {
	c := spawn(false, "sleep", "60000")
	c.Process.Kill()
	for range 2000 {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid)); bytes.Contains(b, []byte(") Z ")) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	fatal("the child lives on")
}

// zleader beats from a second thread while its first one has left by exit(2); "orphan": not below the leader.
func zleader(a []string) {
	if len(a) == 2 {
		spawn(true, "zleader", a[0])
		waitFor(a[0])
		return
	}
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		fatal("not the first thread")
	}
	go stubborn(a)
	waitFor(a[0])
	syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
}

// stopper stops everything that it may for so many milliseconds, itself excepted.
func stopper(a []string) {
	for end := time.Now().Add(time.Duration(num(a[0])) * time.Millisecond); time.Now().Before(end); {
		for range 100 {
			syscall.RawSyscall(syscall.SYS_KILL, ^uintptr(0), uintptr(syscall.SIGSTOP), 0)
		}
	}
}

// sigroot lists the threads of root's processes, makes a file, kills all of the list for so many milliseconds, and
// prints whether it tried and how often that was allowed.
func sigroot(a []string) {
	type thread struct{ pid, tid int }
	var all []thread
	tasks, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range tasks {
		st, err := os.Stat(name)
		if err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
			continue
		}
		ids, _ := os.ReadDir(name + "/task")
		for _, id := range ids {
			all = append(all, thread{num(filepath.Base(name)), num(id.Name())})
		}
	}
	os.WriteFile(a[1], []byte("."), 0o644)
	tries, hits := 0, 0
	for end := time.Now().Add(time.Duration(num(a[0])) * time.Millisecond); time.Now().Before(end); {
		for _, t := range all {
			tries += 2
			if unix.Kill(t.pid, unix.SIGKILL) == nil {
				hits++
			}
			if unix.Tgkill(t.pid, t.tid, unix.SIGKILL) == nil {
				hits++
			}
		}
	}
	fmt.Println(tries > 1000, hits)
}
