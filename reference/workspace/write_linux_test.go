// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

func TestWrittenFileBelongsToTenant(t *testing.T) {
	tree, ws, _ := newTree(t)
	old := unix.Umask(0o077) // the process's umask must not matter
	defer unix.Umask(old)
	body := make([]byte, 3*chunk+17)
	rand.Read(body)
	for _, tt := range []struct {
		name, mode string
		executable bool
		perm       uint32
	}{{"plain", Create, false, 0o644}, {"tool", Create, true, 0o755}, {"plain", Replace, true, 0o755}, {"fresh", Replace, false, 0o644}} {
		size, digest, err := tree.Write(context.Background(), []byte(tt.name), tt.mode, iotest.HalfReader(bytes.NewReader(body)), digestOf(body), tt.executable)
		if err != nil || size != int64(len(body)) || digest != digestOf(body) {
			t.Fatalf("%s %s: %d, %s, %v", tt.mode, tt.name, size, digest, err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(ws+"/"+tt.name, &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != Tenant || st.Gid != Tenant || st.Mode != unix.S_IFREG|tt.perm || st.Nlink != 1 {
			t.Errorf("%s: uid %d, gid %d, mode %o, links %d", tt.name, st.Uid, st.Gid, st.Mode, st.Nlink)
		}
		if got, err := os.ReadFile(ws + "/" + tt.name); err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: content differs, %v", tt.name, err)
		}
	}
	if err := tree.Mkdir(context.Background(), []byte("d")); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(ws+"/d", &st); err != nil || st.Uid != Tenant || st.Gid != Tenant || st.Mode != unix.S_IFDIR|0o755 {
		t.Errorf("directory: uid %d, gid %d, mode %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
	if got := names(t, ws); len(got) != 4 {
		t.Errorf("names are %q", got)
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	tree, path, usage := loopTree(t, 4<<20, 64)
	ctx, cancel := context.WithCancel(context.Background())
	if _, _, err := tree.Write(ctx, []byte("kept"), Create, strings.NewReader("old"), digestOf([]byte("old")), false); err != nil {
		t.Fatal(err)
	}
	before := usage()
	if before.Inodes != 1 || before.Bytes != 4096 {
		t.Fatalf("one small file takes %+v", before)
	}
	broken := errors.New("connection lost")
	for _, tt := range []struct {
		name   string
		body   io.Reader
		digest string
		want   error
	}{
		{"digest", strings.NewReader("other"), digestOf([]byte("announced")), ErrDigest},
		{"no digest", strings.NewReader("x"), "", ErrRequest},
		{"body", io.MultiReader(strings.NewReader(strings.Repeat("x", chunk)), iotest.ErrReader(broken)), digestOf(nil), ErrBody},
		{"cut off", iotest.ErrReader(io.ErrUnexpectedEOF), digestOf(nil), ErrBody},
		{"quota", io.LimitReader(zeros{}, 8<<20), digestOf(nil), ErrQuota},
		{"cancel", readerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil }), digestOf(nil), context.Canceled},
	} {
		for _, name := range []string{"kept", "new"} {
			if _, _, err := tree.Write(ctx, []byte(name), Replace, tt.body, tt.digest, false); !errors.Is(err, tt.want) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
			}
			if r, ok := tt.body.(io.Seeker); ok {
				r.Seek(0, io.SeekStart)
			} else if tt.name == "quota" {
				tt.body = io.LimitReader(zeros{}, 8<<20)
			}
		}
		if got := names(t, path); len(got) != 1 || got[0] != "kept" {
			t.Errorf("%s: names are %q", tt.name, got)
		}
	}
	if after := usage(); after != before {
		t.Errorf("usage went from %+v to %+v", before, after)
	}
	if b, err := os.ReadFile(path + "/kept"); err != nil || string(b) != "old" {
		t.Errorf("the old content is %q, %v", b, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestInodeQuotaIsExact(t *testing.T) {
	tree, _, usage := loopTree(t, 4<<20, 100)
	ctx := context.Background()
	made := 0
	var err error
	for ; made < 200; made++ {
		name := []byte("f" + strings.Repeat("i", made))
		if made%2 == 0 {
			err = tree.Mkdir(ctx, name)
		} else {
			_, _, err = tree.Write(ctx, name, Create, strings.NewReader(""), digestOf(nil), false)
		}
		if err != nil {
			break
		}
	}
	if made != 100 || !errors.Is(err, ErrQuota) {
		t.Errorf("made %d of 100, then %v", made, err)
	}
	if u := usage(); u.Inodes != 100 || u.InodesLimit != 100 {
		t.Errorf("usage is %+v", u)
	}
	if err := tree.Remove(ctx, []byte("f")); err != nil {
		t.Fatal(err)
	}
	if err := tree.Mkdir(ctx, []byte("again")); err != nil {
		t.Errorf("a freed inode did not come back: %v", err)
	}
}

// journal is a Recorder that remembers, and can fail.
type journal struct {
	mu      sync.Mutex
	open    map[string]bool
	seen    int
	refuse  error
	atBegin func(path string)
}

func (j *journal) Record(_ context.Context, path []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.refuse != nil {
		return j.refuse
	}
	j.seen++
	j.open[string(path)] = true
	if j.atBegin != nil {
		j.atBegin(string(path))
	}
	return nil
}

func (j *journal) Forget(_ context.Context, path []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.open[string(path)] {
		return errors.New("never recorded")
	}
	delete(j.open, string(path))
	return nil
}

func TestTemporariesAreRecordedFirst(t *testing.T) {
	_, ws, _ := newTree(t)
	mkdirTenant(t, ws+"/d")
	j := &journal{open: map[string]bool{}}
	tree, err := OpenRecorded(ws, j)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	ctx, body := context.Background(), []byte("x")
	write := func(mode string) error {
		_, _, err := tree.Write(ctx, []byte("d/f"), mode, bytes.NewReader(body), digestOf(body), false)
		return err
	}
	if err := write(Create); err != nil || j.seen != 0 {
		t.Errorf("create needs no temporary: %v, %d recorded", err, j.seen)
	}
	var temp string
	j.atBegin = func(p string) {
		temp = p
		if _, err := os.Lstat(ws + "/" + p); !os.IsNotExist(err) {
			t.Errorf("%s existed before its record", p)
		}
	}
	if err := write(Replace); err != nil || j.seen != 1 || len(j.open) != 0 {
		t.Errorf("replace: %v, %d recorded, open %v", err, j.seen, j.open)
	}
	if _, _, err := tree.Append(ctx, []byte("d/f"), int64(len(body)), bytes.NewReader(nil), digestOf(nil)); err != nil || j.seen != 2 || len(j.open) != 0 {
		t.Errorf("append: %v, %d recorded, open %v", err, j.seen, j.open)
	}
	j.refuse = errors.New("store is full")
	if err := write(Replace); !errors.Is(err, j.refuse) {
		t.Errorf("got %v", err)
	}
	if got := names(t, ws+"/d"); len(got) != 1 {
		t.Errorf("names are %q", got)
	}

	// What a crash between link and rename leaves.
	writeTenant(t, ws+"/"+temp, "x")
	for range 2 {
		if err := tree.RemoveTemporary(ctx, []byte(temp)); err != nil {
			t.Error(err)
		}
	}
	if err := tree.RemoveTemporary(ctx, []byte("d/f")); !errors.Is(err, ErrRequest) {
		t.Errorf("removed what is no temporary: %v", err)
	}
	if got := names(t, ws+"/d"); len(got) != 1 || got[0] != "f" {
		t.Errorf("names are %q", got)
	}
}

func BenchmarkStat(b *testing.B) {
	tree, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	for b.Loop() {
		if _, err := tree.Stat(context.Background(), nil); err != nil && !errors.Is(err, ErrAccess) {
			b.Fatal(err)
		}
	}
}
