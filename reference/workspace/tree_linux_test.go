// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// each runs every operation that takes a path and returns their errors by name.
func each(tree *Tree, path string) map[string]error {
	ctx, p := context.Background(), []byte(path)
	body := []byte("attack")
	out := map[string]error{}
	_, out["stat"] = tree.Stat(ctx, p)
	_, out["list"] = tree.List(ctx, p, "", 10)
	out["mkdir"] = tree.Mkdir(ctx, p)
	out["remove"] = tree.Remove(ctx, p)
	out["rename from"] = tree.Rename(ctx, p, []byte("renamed"))
	out["rename to"] = tree.Rename(ctx, []byte("source"), p)
	_, out["readlink"] = tree.Readlink(ctx, p)
	r, _, err := tree.Read(ctx, p)
	if err == nil {
		r.Close()
	}
	out["read"] = err
	_, _, out["create"] = tree.Write(ctx, p, Create, bytes.NewReader(body), digestOf(body), false)
	_, _, out["replace"] = tree.Write(ctx, p, Replace, bytes.NewReader(body), digestOf(body), false)
	return out
}

func TestPathRules(t *testing.T) {
	tree, ws, out := newTree(t)
	writeTenant(t, ws+"/source", "s")
	mkdirTenant(t, ws+"/a")
	inside, outside := hashTree(t, ws), hashTree(t, out)
	for _, path := range []string{
		"..", "../outside/canary", "a/../../outside/canary", "a/..", "/etc/passwd", "/", "//", "a//b", "a/", ".", "./a", "a/.", "a/./b",
		"a\x00b", "\x00", strings.Repeat("x/", 2048) + "x",
	} {
		for op, err := range each(tree, path) {
			if !errors.Is(err, ErrUnsafe) {
				t.Errorf("%s of %.40q: got %v, want ErrUnsafe", op, path, err)
			}
		}
	}
	for _, path := range []string{strings.Repeat("n", 256), "a/" + strings.Repeat("n", 256), strings.Repeat("n", 256) + "/a"} {
		for op, err := range each(tree, path) { // a name that no filesystem takes is not unsafe
			if !errors.Is(err, ErrRequest) || !errors.Is(err, unix.ENAMETOOLONG) {
				t.Errorf("%s of %.40q: got %.100v, want ErrRequest", op, path, err)
			}
		}
	}
	for op, err := range each(tree, "") {
		if op == "stat" || op == "list" {
			if err != nil {
				t.Errorf("%s of the workspace itself: %v", op, err)
			}
		} else if !errors.Is(err, ErrUnsafe) {
			t.Errorf("%s of the empty path: got %v, want ErrUnsafe", op, err)
		}
	}
	if hashTree(t, ws) != inside || hashTree(t, out) != outside {
		t.Error("a refused path changed something")
	}
	deep := "a"
	for len(deep) < 3900 {
		deep += "/" + strings.Repeat("n", 120)
		if err := tree.Mkdir(context.Background(), []byte(deep)); err != nil {
			t.Fatal(err)
		}
	}
	deep += "/" + strings.Repeat("z", MaxPath-len(deep)-1)
	if err := tree.Mkdir(context.Background(), []byte(deep)); err != nil {
		t.Errorf("path of %d bytes: %.200v", len(deep), err)
	}
	if e, err := tree.Stat(context.Background(), []byte(deep)); err != nil || e.Kind != Dir {
		t.Errorf("path of %d bytes: %.200v", len(deep), err)
	}
	long := strings.Repeat("d/", 2047) + "dd" // 4,096 bytes: allowed, and just not there
	if _, err := tree.Stat(context.Background(), []byte(long)); !errors.Is(err, ErrNotFound) {
		t.Errorf("path of %d bytes: got %.200v, want ErrNotFound", len(long), err)
	}
}

func TestSymlinkAncestorIsNeverFollowed(t *testing.T) {
	tree, ws, out := newTree(t)
	writeTenant(t, ws+"/source", "s")
	for name, target := range map[string]string{"abs": out, "rel": "../outside", "inner": "real", "proc": "/proc/self/root"} {
		if err := os.Symlink(target, ws+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	mkdirTenant(t, ws+"/real")
	writeTenant(t, ws+"/real/canary", "inside")
	inside, outside := hashTree(t, ws), hashTree(t, out)
	for _, link := range []string{"abs", "rel", "inner", "proc"} {
		for op, err := range each(tree, link+"/canary") {
			if !errors.Is(err, ErrUnsafe) {
				t.Errorf("%s below link %s: got %v, want ErrUnsafe", op, link, err)
			}
		}
	}
	if hashTree(t, ws) != inside || hashTree(t, out) != outside {
		t.Error("an operation below a symlink changed something")
	}
}

func TestSymlinkLeafIsTheLinkItself(t *testing.T) {
	tree, ws, out := newTree(t)
	ctx := context.Background()
	outside := hashTree(t, out)
	for name, target := range map[string]string{"link": "../outside/canary", "dangling": "../outside/new", "dir": "../outside", "loop": "loop"} {
		if err := os.Symlink(target, ws+"/"+name); err != nil {
			t.Fatal(err)
		}
		p := []byte(name)
		if e, err := tree.Stat(ctx, p); err != nil || e.Kind != Symlink {
			t.Errorf("stat of %s: %+v, %v", name, e, err)
		}
		if got, err := tree.Readlink(ctx, p); err != nil || string(got) != target {
			t.Errorf("readlink of %s: %q, %v", name, got, err)
		}
		if _, _, err := tree.Read(ctx, p); !errors.Is(err, ErrUnsafe) {
			t.Errorf("read of %s: %v", name, err)
		}
		if _, err := tree.List(ctx, p, "", 1); !errors.Is(err, ErrUnsafe) {
			t.Errorf("list of %s: %v", name, err)
		}
		for _, mode := range []string{Create, Replace} {
			if _, _, err := tree.Write(ctx, p, mode, strings.NewReader("x"), digestOf([]byte("x")), false); !errors.Is(err, ErrUnsafe) {
				t.Errorf("%s of %s: %v", mode, name, err)
			}
		}
		if err := tree.Rename(ctx, p, []byte(name+"2")); err != nil {
			t.Errorf("rename of %s: %v", name, err)
		}
		if err := tree.Remove(ctx, []byte(name+"2")); err != nil {
			t.Errorf("remove of %s: %v", name, err)
		}
	}
	if hashTree(t, out) != outside {
		t.Error("the outside tree changed")
	}
	if left := names(t, ws); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestErrorsByKind(t *testing.T) {
	tree, ws, _ := newTree(t)
	ctx := context.Background()
	writeTenant(t, ws+"/file", "content")
	mkdirTenant(t, ws+"/dir")
	writeTenant(t, ws+"/dir/x", "x")
	if err := os.Mkdir(ws+"/roots", 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(path, mode string) error {
		_, _, err := tree.Write(ctx, []byte(path), mode, strings.NewReader("x"), digestOf([]byte("x")), false)
		return err
	}
	read := func(path string) error { _, _, err := tree.Read(ctx, []byte(path)); return err }
	rename := func(a, b string) error { return tree.Rename(ctx, []byte(a), []byte(b)) }
	_, cursorErr := tree.List(ctx, nil, formatCursor(1, 1), 1)
	_, limitErr := tree.List(ctx, nil, "", MaxPage+1)
	_, linkErr := tree.Readlink(ctx, []byte("file"))
	for _, tt := range []struct {
		name      string
		err, want error
	}{
		{"read absent", read("none"), ErrNotFound},
		{"read dir", read("dir"), ErrIsDir},
		{"read below file", read("file/x"), ErrNotDir},
		{"read root's", read("roots/x"), ErrAccess},
		{"create existing", write("file", Create), ErrExists},
		{"create over dir", write("dir", Create), ErrExists},
		{"replace dir", write("dir", Replace), ErrIsDir},
		{"write below absent", write("none/x", Replace), ErrNotFound},
		{"write into root's", write("roots/x", Create), ErrAccess},
		{"unknown mode", write("new", "append"), ErrRequest},
		{"remove absent", tree.Remove(ctx, []byte("none")), ErrNotFound},
		{"remove full dir", tree.Remove(ctx, []byte("dir")), ErrNotEmpty},
		{"mkdir existing", tree.Mkdir(ctx, []byte("dir")), ErrExists},
		{"mkdir below file", tree.Mkdir(ctx, []byte("file/d")), ErrNotDir},
		{"rename onto", rename("file", "dir/x"), ErrExists},
		{"rename absent", rename("none", "y"), ErrNotFound},
		{"rename into itself", rename("dir", "dir/sub"), ErrUnsafe},
		{"list file", func() error { _, err := tree.List(ctx, []byte("file"), "", 1); return err }(), ErrNotDir},
		{"foreign cursor", cursorErr, ErrRequest},
		{"limit", limitErr, ErrRequest},
		{"readlink of file", linkErr, ErrNotLink},
	} {
		var typed *Error
		if !errors.Is(tt.err, tt.want) || !errors.As(tt.err, &typed) {
			t.Errorf("%s: got %v, want %v", tt.name, tt.err, tt.want)
		}
	}
	if b, err := os.ReadFile(ws + "/file"); err != nil || string(b) != "content" {
		t.Errorf("file is now %q, %v", b, err)
	}
}

// TestEachErrnoHasItsKind, those that a test host cannot be brought to give among them.
func TestEachErrnoHasItsKind(t *testing.T) {
	for errno, want := range map[unix.Errno]error{
		unix.ENOENT: ErrNotFound, unix.EEXIST: ErrExists, unix.EISDIR: ErrIsDir, unix.ENOTDIR: ErrNotDir, unix.ENOTEMPTY: ErrNotEmpty,
		unix.EACCES: ErrAccess, unix.EPERM: ErrAccess, unix.ENOSPC: ErrQuota, unix.EDQUOT: ErrQuota, unix.EFBIG: ErrQuota,
		unix.ELOOP: ErrUnsafe, unix.EXDEV: ErrUnsafe, unix.ENAMETOOLONG: ErrRequest, unix.ENOSYS: ErrPrimitive, unix.EAGAIN: ErrMoved,
	} {
		err := classed("step", errno)
		if !errors.Is(err, want) || !errors.Is(err, errno) {
			t.Errorf("%v is %v", errno, err)
		}
		for _, other := range kinds {
			if other != want && errors.Is(err, other) {
				t.Errorf("%v is %v too", errno, other)
			}
		}
	}
	if err := classed("step", unix.EIO); errors.Is(err, ErrUnsafe) || !errors.Is(err, unix.EIO) {
		t.Errorf("an errno without a kind: %v", err)
	}
}

func TestSpecialFilesNeverBlock(t *testing.T) {
	tree, ws, _ := newTree(t)
	if err := unix.Mkfifo(ws+"/fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	for name, dev := range map[string]uint64{"zero": unix.Mkdev(1, 5), "tty": unix.Mkdev(5, 0)} {
		if err := unix.Mknod(ws+"/"+name, unix.S_IFCHR|0o666, int(dev)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(ws+"/"+name, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	// A socket's path is bounded to 107 bytes, so bind from inside.
	t.Chdir(ws)
	l, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := map[string]Kind{"fifo": FIFO, "zero": Device, "tty": Device, "socket": Socket}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for name, kind := range want {
			if e, err := tree.Stat(context.Background(), []byte(name)); err != nil || e.Kind != kind {
				t.Errorf("stat of %s: %+v, %v", name, e, err)
			}
			if _, _, err := tree.Read(context.Background(), []byte(name)); !errors.Is(err, ErrUnsafe) {
				t.Errorf("read of %s: %v", name, err)
			}
			if _, _, err := tree.Write(context.Background(), []byte(name), Replace, strings.NewReader("x"), digestOf([]byte("x")), false); !errors.Is(err, ErrUnsafe) {
				t.Errorf("write of %s: %v", name, err)
			}
			if _, err := tree.List(context.Background(), []byte(name), "", 1); !errors.Is(err, ErrNotDir) {
				t.Errorf("list of %s: %v", name, err)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		t.Fatal("an operation on a special file blocks")
	}
	page, err := tree.List(context.Background(), nil, "", 10)
	if err != nil || len(page.Entries) != len(want) {
		t.Fatalf("list: %+v, %v", page, err)
	}
	for _, e := range page.Entries {
		if e.Kind != want[string(e.Name)] {
			t.Errorf("%s is listed as %s", e.Name, e.Kind)
		}
	}
}

func TestMountInsideIsRefused(t *testing.T) {
	tree, ws, _ := newTree(t)
	mkdirTenant(t, ws+"/m")
	if err := unix.Mount("tmpfs", ws+"/m", "tmpfs", 0, "size=64k,mode=0777"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(ws+"/m", 0); err != nil {
			t.Error(err)
		}
	}()
	writeTenant(t, ws+"/m/x", "foreign")
	writeTenant(t, ws+"/source", "s")
	before := hashTree(t, ws+"/m")
	for op, err := range each(tree, "m/x") {
		if !errors.Is(err, ErrUnsafe) {
			t.Errorf("%s across a mount: got %v, want ErrUnsafe", op, err)
		}
	}
	if hashTree(t, ws+"/m") != before {
		t.Error("the foreign filesystem changed")
	}
}

func TestListPagesHideNothing(t *testing.T) {
	tree, ws, _ := newTree(t)
	ctx := context.Background()
	want := map[string]bool{}
	for i := range 2500 {
		name := strings.Repeat("\xff", i%40) + "-" + filepath.Base(t.Name()) + "-" + string(rune('a'+i%26)) + strings.Repeat("z", i/26)
		if len(name) > 255 {
			name = name[:255]
		}
		want[name] = true
		if err := os.WriteFile(ws+"/"+name, nil, 0o600); err != nil { // root's, unreadable: still listed
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(ws+"/closed", 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/nowhere", ws+"/\n\t\"link"); err != nil {
		t.Fatal(err)
	}
	want["closed"], want["\n\t\"link"] = true, true
	for _, limit := range []int{7, 1000} {
		got, cursor, pages := map[string]bool{}, "", 0
		for {
			p, err := tree.List(ctx, nil, cursor, limit)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, e := range p.Entries {
				if got[string(e.Name)] {
					t.Fatalf("%q twice", e.Name)
				}
				got[string(e.Name)] = true
			}
			if cursor = p.Cursor; cursor == "" {
				break
			}
			if len(p.Entries) != limit {
				t.Fatalf("a page of %d with more to come", len(p.Entries))
			}
		}
		if len(got) != len(want) || pages != (len(want)+limit-1)/limit {
			t.Errorf("limit %d: %d of %d names in %d pages", limit, len(got), len(want), pages)
		}
		for n := range want {
			if !got[n] {
				t.Errorf("limit %d: %q is missing", limit, n)
			}
		}
	}
}

// TestListOfADirectoryThatChanges gives every name that stays exactly once, whatever is made,
// removed and moved around it between two pages.
func TestListOfADirectoryThatChanges(t *testing.T) {
	tree, ws, _ := loopTree(t, 16<<20, 4096)
	ctx := context.Background()
	stays := map[string]int{}
	for i := range 600 {
		name := "stays-" + strconv.Itoa(i) + strings.Repeat("\xfe", i%50)
		stays[name] = 0
		writeTenant(t, ws+"/"+name, "")
	}
	for round, limit := range []int{1, 7, 100, 599} {
		for name := range stays {
			stays[name] = 0
		}
		made := 0
		for cursor, page := "", 0; ; page++ {
			p, err := tree.List(ctx, nil, cursor, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range p.Entries {
				if _, ok := stays[string(e.Name)]; ok {
					stays[string(e.Name)]++
				}
			}
			if cursor = p.Cursor; cursor == "" {
				break
			}
			if made > 600 {
				continue // else a small page never comes to the end
			}
			// The whole directory is stirred: it grows by blocks, and its index splits.
			for range 3 {
				made++
				writeTenant(t, fmt.Sprintf("%s/new-%d-%d%s", ws, round, made, strings.Repeat("z", 200)), "")
			}
			if made%2 == 0 {
				if err := os.Remove(fmt.Sprintf("%s/new-%d-%d%s", ws, round, made, strings.Repeat("z", 200))); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Rename(fmt.Sprintf("%s/new-%d-%d%s", ws, round, made-1, strings.Repeat("z", 200)), fmt.Sprintf("%s/moved-%d-%d", ws, round, made)); err != nil {
				t.Fatal(err)
			}
		}
		for name, n := range stays {
			if n != 1 {
				t.Errorf("limit %d: %q was listed %d times", limit, name, n)
			}
		}
		if made == 0 && limit < 599 {
			t.Error("nothing changed between two pages")
		}
	}
}

func TestHardLinkedFileIsOrdinary(t *testing.T) {
	tree, ws, _ := newTree(t)
	writeTenant(t, ws+"/a", "one inode")
	if err := os.Link(ws+"/a", ws+"/b"); err != nil {
		t.Fatal(err)
	}
	r, size, err := tree.Read(context.Background(), []byte("b"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "one inode" || size != int64(len(b)) {
		t.Errorf("read %q of %d, %v", b, size, err)
	}
	// Replacing one name leaves the other's content.
	if _, _, err := tree.Write(context.Background(), []byte("a"), Replace, strings.NewReader("new"), digestOf([]byte("new")), false); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(ws + "/b"); string(b) != "one inode" {
		t.Errorf("b is now %q", b)
	}
}

func TestClosedTree(t *testing.T) {
	tree, _, _ := newTree(t)
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Stat(context.Background(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// An error goes to the log with whoever wraps it, and a path may hold anything.
func TestErrorsSayNoPath(t *testing.T) {
	const canary = "s3cr3t-canary"
	tree, ws, _ := newTree(t)
	writeTenant(t, ws+"/source", "s")
	writeTenant(t, ws+"/file-"+canary, "s")
	mkdirTenant(t, ws+"/dir-"+canary)
	writeTenant(t, ws+"/dir-"+canary+"/x", "s")
	if err := errors.Join(os.Symlink("/etc/"+canary, ws+"/link-"+canary), os.Symlink(".", ws+"/loop-"+canary), unix.Mkfifo(ws+"/fifo-"+canary, 0o600)); err != nil {
		t.Fatal(err)
	}
	said := 0
	for _, path := range []string{canary, canary + "/x", "../" + canary, "file-" + canary + "/x", "link-" + canary, "link-" + canary + "/x", "loop-" + canary + "/source",
		"fifo-" + canary, "fifo-" + canary + "/x", "dir-" + canary, strings.Repeat(canary, 40), canary + "\x00", "/" + canary} {
		results := each(tree, path)
		_, _, results["mode"] = tree.Write(t.Context(), []byte("a"), canary, strings.NewReader("x"), digestOf([]byte("x")), false)
		_, results["cursor"] = tree.List(t.Context(), []byte("dir-"+canary), canary, 10)
		_, _, results["append"] = tree.Append(t.Context(), []byte(path), 7, strings.NewReader("x"), digestOf([]byte("x")))
		for op, err := range results {
			if err == nil {
				continue
			}
			said++
			if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, canary) {
				t.Errorf("%s of %.40q: %s", op, path, text)
			}
		}
	}
	if said < 60 {
		t.Errorf("only %d errors were made", said)
	}
}
