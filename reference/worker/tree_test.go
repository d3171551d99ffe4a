// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// mountTree gives r a real workspace of 1 MiB and 32 inodes, and returns its path.
func (r *rig) mountTree() string {
	r.t.Helper()
	dir := tenantDir(r.t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=1m,nr_inodes=32,mode=0755,uid=%d,gid=%d", workspace.Tenant, workspace.Tenant)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			r.t.Error(err)
		}
	})
	tree, err := workspace.Open(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { tree.Close() })
	r.server.o.OpenFiles = func(ctx context.Context, _, _ string) (context.Context, Files, func(), error) {
		ctx, cancel := context.WithCancelCause(ctx)
		r.fake.mu.Lock()
		r.fake.end = cancel
		r.fake.mu.Unlock()
		return ctx, TreeFiles(tree), func() { cancel(nil) }, nil
	}
	return dir
}

// own makes a tenant's file, or a directory when content is "/".
func own(t *testing.T, path, content string) {
	t.Helper()
	make := func() error { return os.WriteFile(path, []byte(content), 0o644) }
	if content == "/" {
		make = func() error { return os.Mkdir(path, 0o755) }
	}
	err := make()
	if err = errors.Join(err, os.Lchown(path, workspace.Tenant, workspace.Tenant)); err != nil {
		t.Fatal(err)
	}
}

// TestErrnoCodes forces every errno that a tenant's tree can give, at the kernel, and says what the wire makes of it.
func TestErrnoCodes(t *testing.T) {
	r := newRig(t, tweak{})
	dir := r.mountTree()
	own(t, dir+"/f", "old")
	own(t, dir+"/d", "/")
	own(t, dir+"/d/x", "x")
	own(t, dir+"/m", "/")
	if err := errors.Join(os.Mkdir(dir+"/roots", 0o700), os.Symlink("f", dir+"/loop"), os.Symlink("d", dir+"/dirlink")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir+"/m", "tmpfs", 0, "size=64k,mode=0777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir+"/m", 0); err != nil {
			t.Error(err)
		}
	})
	fs := func(op, path, more string) client.RawRequest {
		return client.RawRequest{Op: api.OpFS, Method: "POST", Target: "/v1/sandboxes/sb/fs", WorkspaceID: "ws", SandboxID: "sb",
			Body: fmt.Appendf(nil, `{"op":%q,"path":%q%s}`, op, path, more)}
	}
	file := func(op api.Op, method, query, body string) client.RawRequest {
		return client.RawRequest{Op: op, Method: method, Target: "/v1/sandboxes/sb/files?" + query, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(body)}
	}
	long := strings.Repeat("n", unix.NAME_MAX+1)
	for _, tt := range []struct {
		errno unix.Errno
		req   client.RawRequest
		code  api.Code
	}{
		{unix.ENOENT, fs("stat", "none", ""), api.PathNotFound},
		{unix.ENOENT, file(api.OpRead, "GET", "path=none", ""), api.PathNotFound},
		{unix.ENOENT, file(api.OpWrite, "PUT", "path=none/x&mode=create", "x"), api.PathNotFound},
		{unix.EEXIST, fs("mkdir", "d", ""), api.AlreadyExists},
		{unix.EEXIST, fs("rename", "f", `,"to":"d"`), api.AlreadyExists},
		{unix.EEXIST, file(api.OpWrite, "PUT", "path=f&mode=create", "x"), api.AlreadyExists},
		{unix.EISDIR, file(api.OpRead, "GET", "path=d", ""), api.RequestInvalid},
		{unix.EISDIR, file(api.OpWrite, "PUT", "path=d&mode=replace", "x"), api.RequestInvalid},
		{unix.ENOTDIR, fs("stat", "f/x", ""), api.PathNotFound},
		{unix.ENOTDIR, fs("list", "f", ""), api.PathNotFound},
		{unix.ENOTEMPTY, fs("remove", "d", ""), api.AlreadyExists},
		{unix.EACCES, fs("stat", "roots/x", ""), api.RequestInvalid},
		{unix.EACCES, file(api.OpWrite, "PUT", "path=roots/x&mode=create", "x"), api.RequestInvalid},
		{unix.ENOSPC, file(api.OpWrite, "PUT", "path=big&mode=create", strings.Repeat("x", 1<<20+1)), api.QuotaExceeded},
		{unix.ELOOP, file(api.OpRead, "GET", "path=loop", ""), api.PathUnsafe},
		{unix.ELOOP, fs("stat", "dirlink/x", ""), api.PathUnsafe},
		{unix.ENAMETOOLONG, fs("mkdir", long, ""), api.RequestInvalid},
		{unix.ENAMETOOLONG, fs("stat", long+"/x", ""), api.RequestInvalid},
		{unix.EXDEV, fs("stat", "m/x", ""), api.PathUnsafe},
		{unix.EXDEV, fs("rename", "f", `,"to":"m/f"`), api.PathUnsafe},
	} {
		res := r.raw(tt.req)
		if e := api.DecodeError(res.Status, res.Body); e.Code != tt.code {
			t.Errorf("%v by %s %s %.60s: got %d %s, want %s", tt.errno, tt.req.Op, tt.req.Target, tt.req.Body, res.Status, res.Body, tt.code)
		}
	}
	// An append whose answer was lost is not done twice, and one to nothing makes nothing.
	for i, code := range []api.Code{"", api.IdempotencyConflict} {
		res := r.raw(file(api.OpWrite, "PUT", "path=d/x&mode=append&expectedSize=1", "yz"))
		if code == "" && (res.Status != http.StatusOK || !strings.Contains(string(res.Body), `"size":3,`)) || code != "" && api.DecodeError(res.Status, res.Body).Code != code {
			t.Errorf("append %d: %d %s", i, res.Status, res.Body)
		}
	}
	if res := r.raw(file(api.OpWrite, "PUT", "path=none&mode=append&expectedSize=0", "x")); api.DecodeError(res.Status, res.Body).Code != api.PathNotFound {
		t.Errorf("append to nothing: %d %s", res.Status, res.Body)
	}
	// Inodes run out as blocks do.
	for i := 0; ; i++ {
		res := r.raw(fs("mkdir", fmt.Sprintf("i%d", i), ""))
		if res.Status == http.StatusOK && i < 64 {
			continue
		}
		if e := api.DecodeError(res.Status, res.Body); e.Code != api.QuotaExceeded {
			t.Errorf("after %d directories: %d %s", i, res.Status, res.Body)
		}
		break
	}
	if b, err := os.ReadFile(dir + "/f"); err != nil || string(b) != "old" {
		t.Errorf("f is %q, %v", b, err)
	}
}

// leftovers is everything that a transfer could leave: names, space, inodes, descriptors into dir, content.
func leftovers(t *testing.T, dir string) string {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprintf("%d blocks, %d inodes free;", st.Bfree, st.Ffree)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		out += fmt.Sprintf(" %s=%.10q(%d) %v", e.Name(), b, len(b), err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir+"/") {
			out += " open: " + to
		}
	}
	return out
}

// TestTransferThatFails leaves nothing and changes nothing, whatever ends it.
func TestTransferThatFails(t *testing.T) {
	const part = 200 << 10 // more than is in flight, so that it has reached the inode
	body := strings.Repeat("b", 2*part)
	modes := map[string]string{"create": "path=new&mode=create", "replace": "path=f&mode=replace", "append": "path=f&mode=append&expectedSize=3"}
	for _, tt := range []struct {
		name string
		end  func(r *rig, c net.Conn) // after half of the body has been sent
		code api.Code                 // empty where nobody is left to be told
	}{
		{"the client goes away", func(r *rig, c net.Conn) { c.Close() }, ""},
		{"the body ends early", func(r *rig, c net.Conn) { _ = c.(*net.UnixConn).CloseWrite() }, api.RequestInvalid},
		{"the client stops", func(r *rig, c net.Conn) {}, api.RequestInvalid},
		{"the sandbox retires", func(r *rig, c net.Conn) { r.endSandbox() }, api.SandboxExpired},
		{"another body than was signed", func(r *rig, c net.Conn) { _, _ = io.WriteString(c, body[:part-1]+"X") }, api.Unauthenticated},
		{"the quota is met", func(r *rig, c net.Conn) {
			own(r.t, r.mounted+"/filler", "")
			for f, err := os.OpenFile(r.mounted+"/filler", os.O_WRONLY|os.O_APPEND, 0); err == nil; {
				if _, err = f.Write(make([]byte, 4096)); err != nil {
					f.Close()
				}
			}
			_, _ = io.WriteString(c, body[part:])
		}, api.QuotaExceeded},
		{"the target becomes a link", func(r *rig, c net.Conn) {
			for _, name := range []string{"f", "new"} {
				_ = os.Remove(r.mounted + "/" + name)
				if err := os.Symlink("elsewhere", r.mounted+"/"+name); err != nil {
					r.t.Error(err)
				}
			}
			_, _ = io.WriteString(c, body[part:])
		}, api.PathUnsafe},
	} {
		for mode, query := range modes {
			t.Run(tt.name+"/"+mode, func(t *testing.T) {
				stall := 10 * time.Second
				if tt.name == "the client stops" {
					stall = 300 * time.Millisecond
				}
				r := newRig(t, tweak{stall: stall})
				r.mounted = r.mountTree()
				own(t, r.mounted+"/f", "old")
				before := leftovers(t, r.mounted)
				c := r.send(client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?" + query, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(body)}, len(body), body[:part])
				var during string // the attack is at its point: the inode has bytes and no name
				waitFor(t, "the body's way into an inode", func() bool {
					during = leftovers(t, r.mounted)
					return strings.Contains(during, " open: ") && strings.Split(during, ";")[0] != strings.Split(before, ";")[0]
				})
				tt.end(r, c)
				if tt.code != "" {
					res, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(res.Body)
					want := tt.code
					if mode == "create" && want == api.PathUnsafe {
						want = api.AlreadyExists // link(2) never follows, and meets a name
					}
					if e := api.DecodeError(res.StatusCode, b); err != nil || e.Code != want {
						t.Errorf("got %d %s, %v, want %s", res.StatusCode, b, err, want)
					}
				}
				// What the test itself has made or changed.
				_ = os.Remove(r.mounted + "/filler")
				if tt.code == api.PathUnsafe {
					for _, name := range []string{"f", "new"} {
						if to, err := os.Readlink(r.mounted + "/" + name); err != nil || to != "elsewhere" {
							t.Errorf("%s is %q, %v", name, to, err)
						}
						_ = os.Remove(r.mounted + "/" + name)
					}
					own(t, r.mounted+"/f", "old")
				}
				after := ""
				waitFor(t, "the end of the transfer", func() bool { after = leftovers(t, r.mounted); return after == before })
				if t.Failed() {
					t.Logf("before: %s\nafter:  %s", before, after)
				}
			})
		}
	}
}

// TestReaderThatStopsLetsGoOfTheFile, and its neighbour's transfer goes on.
func TestReaderThatStopsLetsGoOfTheFile(t *testing.T) {
	r := newRig(t, tweak{stall: 300 * time.Millisecond})
	r.mounted = r.mountTree()
	own(t, r.mounted+"/f", strings.Repeat("x", 900<<10))
	before := leftovers(t, r.mounted)
	req := client.RawRequest{Op: api.OpRead, Method: "GET", Target: "/v1/sandboxes/sb/files?path=f", WorkspaceID: "ws", SandboxID: "sb"}
	c := r.send(req, 0, "")
	waitFor(t, "the read", func() bool { return leftovers(t, r.mounted) != before })
	if res := r.raw(req); res.Status != 200 || len(res.Body) != 900<<10 {
		t.Errorf("a neighbour got %d with %d bytes", res.Status, len(res.Body))
	}
	waitFor(t, "the end of the read", func() bool { return leftovers(t, r.mounted) == before })
	// What has arrived is not a whole answer.
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("a cut answer looks whole: %d bytes", len(b))
		}
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%s did not come", what)
			return
		}
	}
}
