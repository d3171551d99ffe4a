// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

const holdEnv = "HALLMARK_STATE_TEST_HOLD"

// TestMain doubles as the second process of TestSecondProcess and of TestKillDuringCommits.
func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		_, err := Open(dir, Options{Mode: api.Production, Timeout: 100 * time.Millisecond})
		fmt.Println(errors.Is(err, ErrLocked), err)
		os.Exit(0)
	}
	if dir := os.Getenv(killEnv); dir != "" {
		fmt.Fprintln(os.Stderr, killed(dir, os.Getenv("ROUND")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// open gives a store that is checked and closed after the test.
func open(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	if o.Mode == "" {
		o.Mode = api.Production
	}
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Check(context.Background()); err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("stored state: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestRecordsSurviveReopen(t *testing.T) {
	ctx, dir := t.Context(), filepath.Join(t.TempDir(), "state")
	s := open(t, dir, Options{})
	if _, err := s.Get(ctx, "leases", "a"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("absent bucket: %v", err)
	}
	for _, k := range []string{"b", "a", "c"} {
		if err := s.Put(ctx, "leases", k, []byte("v-"+k)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, "leases", "c"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, "leases", "never"); err != nil {
		t.Fatalf("deleting what is absent: %v", err)
	}
	epoch := s.Epoch()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(ctx, "leases", "d", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("put after close: %v", err)
	}
	if _, err := s.Get(ctx, "leases", "a"); !errors.Is(err, ErrClosed) {
		t.Errorf("get after close: %v", err)
	}

	s = open(t, dir, Options{})
	var got []string
	if err := s.Each("leases", func(k string, v []byte) error {
		got = append(got, k+"="+string(v))
		return s.Put(ctx, "seen", k, v) // Each allows calls of the store
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != "[a=v-a b=v-b]" {
		t.Errorf("records after reopen: %v", got)
	}
	if v, err := s.Get(ctx, "seen", "b"); err != nil || !bytes.Equal(v, []byte("v-b")) {
		t.Errorf("written from Each: %q, %v", v, err)
	}
	if len(s.Epoch()) != 32 || s.Epoch() == epoch {
		t.Errorf("epochs %q and %q", epoch, s.Epoch())
	}
}

func TestKeys(t *testing.T) {
	s := open(t, t.TempDir()+"/s", Options{})
	for _, k := range []string{"a", "b/1", "b/2", "b/3", "b0", "c"} {
		if err := s.Put(t.Context(), "rows", k, []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		bucket, prefix string
		most           int
		want           []string
	}{
		{"rows", "b/", 9, []string{"b/1", "b/2", "b/3"}},
		{"rows", "b/", 2, []string{"b/1", "b/2"}},
		{"rows", "b", 9, []string{"b/1", "b/2", "b/3", "b0"}},
		{"rows", "", 9, []string{"a", "b/1", "b/2", "b/3", "b0", "c"}},
		{"rows", "d", 9, nil},
		{"rows", "b/", 0, nil},
		{"absent", "", 9, nil},
	} {
		got, err := s.Keys(tt.bucket, tt.prefix, tt.most)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s, %q, at most %d: %q, %v", tt.bucket, tt.prefix, tt.most, got, err)
		}
	}
}

func TestUpdateIsAllOrNothing(t *testing.T) {
	s := open(t, t.TempDir()+"/s", Options{})
	ctx := t.Context()
	long := make([]byte, 40_000) // above bbolt's largest key
	err := s.Update(ctx, "b", Change{Key: "one", Value: []byte("1")}, Change{Key: string(long), Value: []byte("2")})
	if err == nil {
		t.Fatal("an impossible key was stored")
	}
	if _, err := s.Get(ctx, "b", "one"); !errors.Is(err, ErrNotFound) {
		t.Errorf("half of an update is there: %v", err)
	}
	if err := s.Put(ctx, nonceBucket, "x", nil); err == nil {
		t.Error("the nonce bucket is writable from outside")
	}
}

func TestModeMark(t *testing.T) {
	dir := t.TempDir() + "/s"
	s := open(t, dir, Options{Mode: api.Qualification})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Mode: api.Production}); !errors.Is(err, ErrMode) {
		t.Errorf("the other mode: %v", err)
	}
	open(t, dir, Options{Mode: api.Qualification})
	if _, err := Open(t.TempDir()+"/t", Options{Mode: "test"}); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

func TestSecondProcess(t *testing.T) {
	dir := t.TempDir() + "/s"
	open(t, dir, Options{})
	run := func() string {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), holdEnv+"="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := run(); !bytes.HasPrefix([]byte(out), []byte("true ")) {
		t.Errorf("second process: %s", out)
	}
	// bbolt's own lock follows the renamed inode; the directory's does not move.
	if err := os.Rename(filepath.Join(dir, fileName), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	if out := run(); !bytes.HasPrefix([]byte(out), []byte("true ")) {
		t.Errorf("second process after a rename: %s", out)
	}
	if err := os.Rename(filepath.Join(dir, "moved"), filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
}

func TestUnsafeDirectory(t *testing.T) {
	dir := t.TempDir() + "/s"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Mode: api.Production}); !errors.Is(err, ErrUnsafe) {
		t.Errorf("group-readable: %v", err)
	}
	link := t.TempDir() + "/link"
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(link, Options{Mode: api.Production}); err == nil {
		t.Error("a symlink was accepted as the state directory")
	}
}

func TestDamagedFileIsRefusedAndKept(t *testing.T) {
	dir := t.TempDir() + "/s"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	junk := bytes.Repeat([]byte("junk"), 4096)
	if err := os.WriteFile(filepath.Join(dir, fileName), junk, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Mode: api.Production}); err == nil {
		t.Fatal("a damaged file was opened")
	}
	if got, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || !bytes.Equal(got, junk) {
		t.Errorf("the damaged file was changed: %v", err)
	}
}

func TestParallelWritesShareCommits(t *testing.T) {
	s := open(t, t.TempDir()+"/s", Options{})
	before := s.db.Stats()
	const n = 400
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := s.Put(context.Background(), "b", fmt.Sprint(i), []byte("v")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	count := 0
	if err := s.Each("b", func(string, []byte) error { count++; return nil }); err != nil || count != n {
		t.Errorf("%d records, %v", count, err)
	}
	// A commit of its own writes at least three pages; shared ones write far fewer in all.
	after := s.db.Stats()
	if writes := after.TxStats.GetWrite() - before.TxStats.GetWrite(); writes >= 3*n {
		t.Errorf("%d page writes for %d puts: nothing was grouped", writes, n)
	}
}
