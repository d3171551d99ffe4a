// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

func TestAppend(t *testing.T) {
	tree, ws, _ := newTree(t)
	ctx := context.Background()
	old := strings.Repeat("o", chunk+5)
	writeTenant(t, ws+"/f", old)
	if err := os.Link(ws+"/f", ws+"/other"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(ws+"/f", 0o640|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	want := old
	for _, body := range []string{"first", "", strings.Repeat("n", 2*chunk)} {
		size, digest, err := tree.Append(ctx, []byte("f"), int64(len(want)), iotest.HalfReader(strings.NewReader(body)), digestOf([]byte(body)))
		before := int64(len(want))
		want += body
		if err != nil || size != int64(len(want)) || digest != digestOf([]byte(body)) {
			t.Fatalf("append of %d bytes: %d, %s, %v", len(body), size, digest, err)
		}
		if got, err := os.ReadFile(ws + "/f"); err != nil || string(got) != want {
			t.Fatalf("content of %d bytes differs, %v", len(got), err)
		}
		if body != "" { // the answer was lost, and the caller tries again
			if _, _, err := tree.Append(ctx, []byte("f"), before, strings.NewReader(body), digestOf([]byte(body))); !errors.Is(err, ErrSize) {
				t.Errorf("a repetition: %v", err)
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(ws+"/f", &st); err != nil || st.Uid != Tenant || st.Gid != Tenant || st.Mode != unix.S_IFREG|0o640 {
		t.Errorf("uid %d, gid %d, mode %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
	if got, err := os.ReadFile(ws + "/other"); err != nil || string(got) != old {
		t.Errorf("the other name has %d bytes, %v", len(got), err)
	}
	if got := names(t, ws); len(got) != 2 {
		t.Errorf("names are %q", got)
	}
}

func TestFailedAppendLeavesNothing(t *testing.T) {
	tree, path, usage := loopTree(t, 4<<20, 64)
	ctx, cancel := context.WithCancel(context.Background())
	old := make([]byte, 1<<20)
	if _, _, err := tree.Write(ctx, []byte("f"), Create, bytes.NewReader(old), digestOf(old), false); err != nil {
		t.Fatal(err)
	}
	if err := tree.Mkdir(ctx, []byte("dir")); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Symlink("f", path+"/link"), unix.Mkfifo(path+"/fifo", 0o666)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	writeTenant(t, path+"/closed", "x")
	if err := os.Chmod(path+"/closed", 0o200); err != nil {
		t.Fatal(err)
	}
	before, size := usage(), int64(len(old))
	for _, tt := range []struct {
		name, path string
		size       int64
		body       io.Reader
		digest     string
		want       error
	}{
		{"absent", "none", 0, strings.NewReader(""), digestOf(nil), ErrNotFound},
		{"shorter", "f", size - 1, strings.NewReader(""), digestOf(nil), ErrSize},
		{"longer", "f", size + 1, strings.NewReader(""), digestOf(nil), ErrSize},
		{"negative", "f", -1, strings.NewReader(""), digestOf(nil), ErrRequest},
		{"directory", "dir", 0, strings.NewReader(""), digestOf(nil), ErrIsDir},
		{"symlink", "link", size, strings.NewReader(""), digestOf(nil), ErrUnsafe},
		{"below a symlink", "link/f", size, strings.NewReader(""), digestOf(nil), ErrUnsafe},
		{"fifo", "fifo", 0, strings.NewReader(""), digestOf(nil), ErrUnsafe},
		{"not readable", "closed", 1, strings.NewReader(""), digestOf(nil), ErrAccess},
		{"traversal", "../f", size, strings.NewReader(""), digestOf(nil), ErrUnsafe},
		{"no digest", "f", size, strings.NewReader(""), "", ErrRequest},
		{"digest", "f", size, strings.NewReader("other"), digestOf([]byte("announced")), ErrDigest},
		{"cut off", "f", size, io.MultiReader(strings.NewReader("x"), iotest.ErrReader(io.ErrUnexpectedEOF)), digestOf([]byte("x")), ErrBody},
		{"quota", "f", size, io.LimitReader(zeros{}, 8<<20), digestOf(nil), ErrQuota},
		{"cancel", "f", size, readerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil }), digestOf(nil), context.Canceled},
		{"cancelled", "f", size, strings.NewReader(""), digestOf(nil), context.Canceled},
	} {
		if _, _, err := tree.Append(ctx, []byte(tt.path), tt.size, tt.body, tt.digest); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if got := names(t, path); len(got) != 5 {
			t.Errorf("%s: names are %q", tt.name, got)
		}
	}
	if after := usage(); after != before {
		t.Errorf("usage went from %+v to %+v", before, after)
	}
	if got, err := os.ReadFile(path + "/f"); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the file has %d bytes now, %v", len(got), err)
	}
}

// TestAppendToAFileThatChanges: each append is refused, or has exactly the size that was
// asked for and ends in exactly what was sent.
func TestAppendToAFileThatChanges(t *testing.T) {
	tree, ws, _ := newTree(t)
	ctx, size, body := context.Background(), int64(4*chunk), []byte("tail")
	writeTenant(t, ws+"/f", "")
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, to := range []int64{size, size / 2} {
				_ = os.Truncate(ws+"/f", to)
			}
			_ = os.Rename(ws+"/f", ws+"/g")
			_ = os.Rename(ws+"/g", ws+"/f")
		}
	})
	hits := map[string]int{}
	for range 20_000 {
		_, _, err := tree.Append(ctx, []byte("f"), size, bytes.NewReader(body), digestOf(body))
		switch {
		case err == nil:
			hits["done"]++
		case errors.Is(err, ErrSize):
			hits["size"]++
			if strings.Contains(err.Error(), "early") {
				hits["while it was copied"]++
			}
		case errors.Is(err, ErrNotFound):
			hits["name"]++
		default:
			t.Fatal(err)
		}
		if hits["done"] > 20 && hits["size"] > 20 && hits["while it was copied"] > 2 {
			break
		}
	}
	close(done)
	wg.Wait()
	t.Logf("%v", hits)
	if hits["done"] == 0 || hits["size"] == 0 || hits["while it was copied"] == 0 {
		t.Error("the race was not met")
	}
	// At rest, with what a truncation during the body does: nothing.
	if err := os.Truncate(ws+"/f", size); err != nil {
		t.Fatal(err)
	}
	cut := readerFunc(func(b []byte) (int, error) {
		if err := os.Truncate(ws+"/f", 1); err != nil {
			t.Error(err)
		}
		return copy(b, body), io.EOF
	})
	if got, _, err := tree.Append(ctx, []byte("f"), size, cut, digestOf(body)); err != nil || got != size+int64(len(body)) {
		t.Errorf("got %d, %v", got, err)
	}
	got, err := os.ReadFile(ws + "/f")
	if err != nil || int64(len(got)) != size+int64(len(body)) || !bytes.HasSuffix(got, body) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if left := names(t, ws); len(left) > 2 {
		t.Errorf("names are %q", left)
	}
}
