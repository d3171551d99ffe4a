// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// These tests work on an XFS image of their own, mounted without quota: project ids and inherit
// flags are stored there all the same, so walks are real. Whether limits hold is for a host whose
// kernel has quota formats.

// imageBytes is the size of the image, which is sparse: room for a million inodes of 512 bytes.
const imageBytes = 3 << 30

// volume is where the image is mounted.
var volume string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Getenv(childVerb) != "" {
		return child()
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests need root and loop devices; run them as root")
		return 1
	}
	code, err := withVolume(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// ownVolume names a directory on a filesystem to run on instead, such as one with project quota, or ext4,
// in a virtual machine.
const ownVolume = "PROJECT_TEST_VOLUME"

// withVolume makes and mounts the image for f, and proves that nothing is left of it.
func withVolume(f func() int) (code int, err error) {
	if volume = os.Getenv(ownVolume); volume != "" {
		return f(), nil
	}
	base, err := os.MkdirTemp("", "hallmark-project-test-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(base)) }()
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return 1, err
	}
	img, point := base+"/volume.img", base+"/volume"
	mkfs, err := tool("mkfs.xfs")
	if err != nil {
		return 1, err
	}
	if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, imageBytes), os.Mkdir(point, 0o700)); err != nil {
		return 1, err
	}
	for _, c := range []*exec.Cmd{mkfs("-q", img), exec.Command("mount", "-o", "loop,nosuid,nodev", img, point)} {
		if out, err := c.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("%v: %w: %s", c.Args, err, out)
		}
	}
	volume = point
	before := descriptors()
	code = f()
	if after := descriptors(); after > before {
		err = errors.Join(err, fmt.Errorf("left behind: %d descriptors instead of %d", after, before))
	}
	for _, m := range below(point) { // of a test that has failed
		err = errors.Join(err, fmt.Errorf("left behind: a mount at %s", m), unix.Unmount(m, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
	}
	if uerr := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); uerr != nil {
		err = errors.Join(err, fmt.Errorf("unmount the image: %w", uerr))
	}
	// Whoever copied the mounts of this host meanwhile has the device until it ends.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		held := holders(base)
		if len(held) == 0 {
			break
		}
		if time.Now().After(deadline) {
			err = errors.Join(err, fmt.Errorf("left behind: %q", held))
			break
		}
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), base) {
		err = errors.Join(err, errors.New("left behind: a mount below "+base))
	}
	return code, err
}

// below are the mount points below a directory, the last one first.
func below(dir string) (out []string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			out = append(out, f[4])
		}
	}
	slices.Reverse(out)
	return out
}

// holders are the loop devices of files below dir.
func holders(dir string) (out []string) {
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, d := range devices {
		if b, err := os.ReadFile(d); err == nil && strings.HasPrefix(string(b), dir) {
			out = append(out, d)
		}
	}
	return out
}

func descriptors() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

// tool returns a program of xfsprogs, out of the package folder of the lab.
func tool(name string) (func(args ...string) *exec.Cmd, error) {
	cache, err := lab.CacheDir()
	if err != nil {
		return nil, err
	}
	packages, err := lab.Extract(cache, os.Stderr)
	if err != nil {
		return nil, err
	}
	b, err := packages.Program(context.Background(), name, "xfsprogs")
	if err != nil {
		return nil, err
	}
	return func(args ...string) *exec.Cmd {
		c := exec.Command(b.Path, args...)
		c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(b.Libraries, ":"))
		return c
	}, nil
}

var lastID atomic.Uint32

// newID returns a project id that no other test uses.
func newID() uint32 { return 1_000_000 + lastID.Add(1) }

// newDir returns an empty directory on the volume, which goes with the test.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(volume, "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// open returns dir as a tree that is walked.
func open(t testing.TB, dir string) *tree {
	t.Helper()
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(parent)
	tr, err := openTree(parent, filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.close)
	return tr
}

// assignTo walks dir.
func assignTo(t testing.TB, dir string, id uint32, at barriers) (Counted, error) {
	t.Helper()
	return open(t, dir).assign(context.Background(), id, at)
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// create makes files by path: "d/" is a directory, "f" a file, "l>target" a symlink, "f=other" a hard
// link, "p|" a FIFO, "s=" a socket.
func create(t testing.TB, dir string, names ...string) {
	t.Helper()
	for _, n := range names {
		var err error
		switch {
		case strings.HasSuffix(n, "/"):
			err = os.MkdirAll(dir+"/"+n, 0o755)
		case strings.HasSuffix(n, "|"):
			err = unix.Mkfifo(dir+"/"+strings.TrimSuffix(n, "|"), 0o644)
		case strings.HasSuffix(n, "="):
			err = bind(dir + "/" + strings.TrimSuffix(n, "="))
		case strings.Contains(n, ">"):
			link, target, _ := strings.Cut(n, ">")
			err = os.Symlink(target, dir+"/"+link)
		case strings.Contains(n, "="):
			link, other, _ := strings.Cut(n, "=")
			err = os.Link(dir+"/"+other, dir+"/"+link)
		default:
			err = os.WriteFile(dir+"/"+n, []byte(n), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// bind makes a socket whose path may be longer than sun_path.
func bind(path string) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Bind(s, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), filepath.Base(path))})
}

// mark is what a test knows of an inode, read by path and with the calls of the kernel alone.
type mark struct {
	ino     uint64
	gen     uint32 // a number that is used again has another
	projid  uint32
	inherit bool
}

func readMark(t testing.TB, path string) mark {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	out, err := readable(fd, st.Mode)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	h, _, err := handleAt(fd, &empty[0], unix.AT_EMPTY_PATH)
	must(t, err)
	out.ino, out.gen, err = h.read()
	must(t, err)
	return out
}

func readable(fd int, mode uint32) (mark, error) {
	proc, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return mark{}, err
	}
	defer unix.Close(proc)
	if !opens(uint8(mode & unix.S_IFMT >> 12)) {
		var f fileAttr
		err := procfs(proc).attr(unix.SYS_FILE_GETATTR, fd, &f)
		if err == unix.ENOSYS || err == unix.EOPNOTSUPP {
			err = nil
		}
		return mark{projid: f.projid}, err
	}
	open, err := procfs(proc).reopen(fd, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return mark{}, err
	}
	defer unix.Close(open)
	x, err := getOpen(open)
	return mark{projid: x.projid, inherit: x.xflags&xflagProjInherit != 0}, err
}

// marks reads a whole tree, or several, by path.
func marks(t testing.TB, dirs ...string) map[string]mark {
	t.Helper()
	out := map[string]mark{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			m := readMark(t, path)
			out[path] = m
			return nil
		})
		must(t, err)
	}
	return out
}

// sameMarks fails the test when an inode that was in before has another id or flag now.
func sameMarks(t testing.TB, before, now map[string]mark) {
	t.Helper()
	type key struct {
		ino uint64
		gen uint32
	}
	byInode := map[key]mark{}
	for _, m := range now {
		byInode[key{m.ino, m.gen}] = m
	}
	var bad []string
	for path, m := range before {
		if n, there := byInode[key{m.ino, m.gen}]; there && n != m {
			bad = append(bad, fmt.Sprintf("%s is %+v, it was %+v", path, n, m))
		}
	}
	slices.Sort(bad)
	for _, b := range bad {
		t.Error(b)
	}
}

// holds fails the test unless every inode of dir has the id, and every directory passes it on.
func holds(t testing.TB, dir string, id uint32) {
	t.Helper()
	for path, m := range marks(t, dir) {
		st, err := os.Lstat(path)
		must(t, err)
		if special := !st.IsDir() && !st.Mode().IsRegular(); special && !reads(path) {
			continue
		}
		if m.projid != id || st.IsDir() && !m.inherit {
			t.Errorf("%s has project id %d, inherit %t; want %d", path, m.projid, m.inherit, id)
		}
	}
}

// reads says whether the kernel has attributes of a symlink, FIFO or socket.
func reads(path string) bool {
	name, err := unix.BytePtrFromString(path)
	var f fileAttr
	return err == nil && attrAt(unix.AT_FDCWD, name, &f) == nil
}

// on says whether the volume is of that filesystem.
func on(t testing.TB, name string) bool {
	t.Helper()
	st, err := Ask(volume)
	must(t, err)
	return st.Filesystem == name
}

func inodeOf(t testing.TB, path string) uint64 {
	t.Helper()
	st, err := os.Lstat(path)
	must(t, err)
	return st.Sys().(*syscall.Stat_t).Ino
}
