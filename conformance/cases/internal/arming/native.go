// SPDX-License-Identifier: Apache-2.0

package arming

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
)

// treeHash plants a changed byte, a changed mode, a new and a missing file.
func treeHash(_ context.Context, dir string) (f finding, err error) {
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"byte", "mode", "missing", "same"} {
		if err := os.WriteFile(path(name), []byte("planted"), 0o600); err != nil {
			return f, err
		}
	}
	before, err := oracle.HashTree(dir)
	if err != nil {
		return f, err
	}
	st, err := os.Stat(path("byte"))
	if err != nil {
		return f, err
	}
	// The changed byte keeps size and time: only the content can tell.
	if err := errors.Join(os.WriteFile(path("byte"), []byte("Planted"), 0o600), os.Chtimes(path("byte"), st.ModTime(), st.ModTime()),
		os.Chmod(path("mode"), 0o644), os.Remove(path("missing")), os.Symlink("x", path("new"))); err != nil {
		return f, err
	}
	after, err := oracle.HashTree(dir)
	if err != nil {
		return f, err
	}
	found := before.Diff(after)
	f.witness = map[string]int64{"planted-found": 0}
	for _, want := range []string{"! byte", "! mode", "- missing", "+ new"} {
		if !slices.Contains(found, want) {
			f.missed = append(f.missed, fmt.Sprintf("the tree hash does not show %q", want))
			continue
		}
		f.witness["planted-found"]++
	}
	if slices.Contains(found, "! same") {
		f.alarms = append(f.alarms, "the tree hash shows a change of an unchanged file")
	}
	return f, nil
}

// search plants a token in a name, a content, a link and an attribute, and across the pieces in which a
// large file is read.
func search(_ context.Context, dir string) (f finding, err error) {
	token := "planted" + strings.ToLower(rand.Text())
	path := func(name string) string { return filepath.Join(dir, name) }
	large := append(bytes.Repeat([]byte{0}, 1<<20-5), token...) // the first piece ends within it
	if err := errors.Join(os.WriteFile(path("content"), []byte("x"+token+"y"), 0o600), os.WriteFile(path("large"), append(large, make([]byte, 1<<20)...), 0o600),
		os.Mkdir(path("name-"+token), 0o700), os.Symlink("/x/"+token, path("target")), os.WriteFile(path("attribute"), nil, 0o600),
		os.WriteFile(path("clean"), []byte(token[:len(token)-1]+"!"), 0o600)); err != nil {
		return f, err
	}
	want := []string{"content of content", "content of large", "name of name-" + token, "target of target"}
	// A file system without such attributes cannot hide anything in them.
	if err := unix.Setxattr(path("attribute"), "user.hallmark", []byte(token), 0); err == nil {
		want = append(want, "attribute of attribute")
	} else if !errors.Is(err, unix.ENOTSUP) {
		return f, fmt.Errorf("plant attribute: %w", err)
	}
	found, searched, err := oracle.Search(dir, []byte(token))
	if err != nil {
		return f, err
	}
	f.witness = map[string]int64{"planted-found": 0, "searched": searched}
	for _, w := range want {
		if !slices.Contains(found, w) {
			f.missed = append(f.missed, fmt.Sprintf("the search does not find the %s", strings.ReplaceAll(w, token, "TOKEN")))
			continue
		}
		f.witness["planted-found"]++
	}
	if len(found) > len(want) {
		f.alarms = append(f.alarms, fmt.Sprintf("the search finds %d places, %d were planted", len(found), len(want)))
	}
	return f, nil
}

// access reads one of two watched files.
func access(_ context.Context, dir string) (f finding, err error) {
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(path("read"), []byte("x"), 0o600), os.WriteFile(path("left"), []byte("x"), 0o600)); err != nil {
		return f, err
	}
	a, err := oracle.WatchAccess(path("read"), path("left"))
	if err != nil {
		return f, err
	}
	defer a.Close()
	if _, err := os.ReadFile(path("read")); err != nil {
		return f, err
	}
	if _, err := os.Stat(path("left")); err != nil {
		return f, err
	}
	seen, err := a.Take()
	if err != nil {
		return f, err
	}
	if s := seen[path("read")]; s.Opened == 0 || s.Read == 0 {
		f.missed = append(f.missed, fmt.Sprintf("a read of a watched file is seen as %d opens and %d reads", s.Opened, s.Read))
	} else {
		f.witness = map[string]int64{"planted-found": 1}
	}
	if s, any := seen[path("left")]; any {
		f.alarms = append(f.alarms, fmt.Sprintf("a file that was left alone is seen with %d opens and %d reads", s.Opened, s.Read))
	}
	if again, err := a.Take(); err != nil || len(again) != 0 {
		f.alarms = append(f.alarms, fmt.Sprintf("what was seen is seen again: %d files, %v", len(again), err))
	}
	return f, nil
}

// process looks for the suite's own process and hashes what it executes.
func process(_ context.Context, _ string) (f finding, err error) {
	table, err := oracle.Processes()
	if err != nil {
		return f, err
	}
	self, ok := table[os.Getpid()]
	if !ok || self.Parent != os.Getppid() {
		f.missed = append(f.missed, "the suite's own process is not in the table as it is")
	}
	running, err := oracle.ExeDigest(os.Getpid())
	if err != nil {
		return f, err
	}
	name, err := os.Executable()
	if err != nil {
		return f, err
	}
	onDisk, err := oracle.FileDigest(name)
	if err != nil {
		return f, err
	}
	if running != onDisk {
		f.missed = append(f.missed, fmt.Sprintf("the suite executes %s and its file is %s", running, onDisk))
	}
	if other, err := oracle.FileDigest("/proc/1/exe"); err == nil && other == running {
		f.alarms = append(f.alarms, "the host's init and the suite have one digest")
	}
	if len(oracle.Namespaces([]int{os.Getpid()})) < 5 {
		f.missed = append(f.missed, "the suite's own namespaces are not seen")
	}
	if lines, err := oracle.Credentials(os.Getpid()); err != nil || lines["Uid"] != fmt.Sprint(os.Getuid(), os.Geteuid(), os.Geteuid(), os.Geteuid()) {
		f.missed = append(f.missed, fmt.Sprintf("the suite's own user is seen as %q, %v", lines["Uid"], err))
	}
	if mounts, err := oracle.Mounts(1); err != nil || !slices.ContainsFunc(mounts, func(m oracle.Mount) bool { return m.Point == "/" }) {
		f.missed = append(f.missed, fmt.Sprintf("the host's root is not among its %d mounts, %v", len(mounts), err))
	}
	if err := descriptors(&f); err != nil {
		return f, err
	}
	if err := preferred(&f); err != nil {
		return f, err
	}
	f.witness = map[string]int64{"processes": int64(len(table))}
	return f, nil
}

// descriptors plants open files in the suite's own process.
func descriptors(f *finding) error {
	const planted = 200
	before, err := oracle.Descriptors(os.Getpid())
	if err != nil {
		return err
	}
	for range planted {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		defer null.Close()
	}
	after, err := oracle.Descriptors(os.Getpid())
	if err != nil {
		return err
	}
	if after-before < planted/2 { // others of this process may close some meanwhile
		f.missed = append(f.missed, fmt.Sprintf("%d open files raised the descriptors by %d", planted, after-before))
	}
	return nil
}

// preferred plants a thread with a higher priority, in a process that does nothing and is ended.
func preferred(f *finding) error {
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pids := []int{cmd.Process.Pid}
	if list, _, err := oracle.Preferred(pids); err != nil || len(list) > 0 {
		f.alarms = append(f.alarms, fmt.Sprintf("a plain process is preferred: %q, %v", list, err))
	}
	switch err := unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, -1); err {
	case nil:
	case unix.EACCES, unix.EPERM:
		return nil // where the suite as root may not raise a priority, no tenant can
	default:
		return err
	}
	if list, _, err := oracle.Preferred(pids); err != nil || len(list) != 1 {
		f.missed = append(f.missed, fmt.Sprintf("a process with nice -1 is seen as %q, %v", list, err))
	}
	return nil
}

// memory plants an allocation that is given back before it is looked for: only a peak shows it.
func memory(_ context.Context, _ string) (f finding, err error) {
	const size = 48 << 20
	if err := oracle.ResetPeak(os.Getpid()); err != nil {
		return f, err
	}
	before, _, err := oracle.ResidentMemory(os.Getpid())
	if err != nil {
		return f, err
	}
	if err := oracle.TouchAndRelease(size); err != nil {
		return f, err
	}
	_, peak, err := oracle.ResidentMemory(os.Getpid())
	if err != nil {
		return f, err
	}
	if peak-before < size*3/4 {
		f.missed = append(f.missed, fmt.Sprintf("an allocation of %d bytes raised the peak by %d", int64(size), peak-before))
	}
	f.witness = map[string]int64{"mib-touched": size >> 20}
	return f, nil
}

// cpu plants a computation in this process, measured by another counter of the kernel's.
func cpu(ctx context.Context, _ string) (f finding, err error) {
	const burn = 200 * time.Millisecond
	self := os.Getpid()
	before, err := oracle.CPUTime(self)
	if err != nil {
		return f, err
	}
	timer := time.Now()
	var usage [2]unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage[0]); err != nil {
		return f, err
	}
	for used := time.Duration(0); used < burn && ctx.Err() == nil; {
		for i, x := 0, 1.0; i < 1<<20; i++ {
			x = x*1.0000001 + 1
		}
		if err := unix.Getrusage(unix.RUSAGE_SELF, &usage[1]); err != nil {
			return f, err
		}
		used = time.Duration(usage[1].Utime.Nano() - usage[0].Utime.Nano())
	}
	after, err := oracle.CPUTime(self)
	if err != nil {
		return f, err
	}
	if grown := after - before; grown < burn/2 {
		f.missed = append(f.missed, fmt.Sprintf("a computation of %s in %s raised the CPU time by %s", burn, time.Since(timer), grown))
	}
	f.witness = map[string]int64{"ms-burnt": burn.Milliseconds()}
	return f, nil
}
