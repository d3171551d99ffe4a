// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"context"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

func clone(t *testing.T) string {
	t.Helper()
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "clone")
	if out, err := exec.Command("git", "clone", "-q", repo, dir).CombinedOutput(); err != nil {
		t.Fatalf("clone: %v\n%s", err, out)
	}
	return dir
}

// Two clones of one commit, in folders of different names, give the same bytes.
func TestTwoClonesGiveTheSameDigests(t *testing.T) {
	var sums [2]map[string][32]byte
	for i := range sums {
		dir := clone(t)
		if err := build.All(t.Context(), build.Options{Source: dir, Out: filepath.Join(dir, "bin")}); err != nil {
			t.Fatal(err)
		}
		sums[i] = map[string][32]byte{}
		for _, name := range build.Commands {
			b, err := os.ReadFile(filepath.Join(dir, "bin", name))
			if err != nil {
				t.Fatal(err)
			}
			sums[i][name] = sha256.Sum256(b)
		}
	}
	for _, name := range build.Commands {
		if sums[0][name] != sums[1][name] {
			t.Errorf("%s: %x and %x", name, sums[0][name], sums[1][name])
		}
	}
}

// The stamp tells a clean tree from a changed one and from no checkout at all.
func TestStamp(t *testing.T) {
	dir := clone(t)
	clean := build.ReadStamp(t.Context(), dir)
	if len(clean.Commit) != 40 || clean.TreeState != "clean" {
		t.Errorf("a fresh clone is %+v", clean)
	}
	if err := os.WriteFile(filepath.Join(dir, "new.go"), []byte("package hallmark\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s := build.ReadStamp(t.Context(), dir); s.TreeState != "dirty" || s.Commit != clean.Commit {
		t.Errorf("with an untracked file it is %+v", s)
	}
	if s := build.ReadStamp(t.Context(), t.TempDir()); s.Commit != "unknown" || s.TreeState != "unknown" {
		t.Errorf("outside a checkout it is %+v", s)
	}
}

// A given stamp goes into the binary whatever the tree says: mutants carry that of the suite.
func TestGivenStamp(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, commit := t.TempDir(), strings.Repeat("5a", 20)
	if err := build.All(t.Context(), build.Options{Source: repo, Out: dir, Only: []string{"hallmark-worker"}, Stamp: &build.Stamp{Commit: commit, TreeState: "clean"}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "hallmark-worker"))
	if err != nil || !strings.Contains(string(b), commit) {
		t.Errorf("the stamp is not in the binary, %v", err)
	}
}

// An interrupted build leaves neither a binary nor the go command's work folder.
func TestInterruptedBuildLeavesNothing(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	temp, out := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)         // the go command's own choice must not be used
	t.Setenv("GOCACHE", t.TempDir()) // empty, so that there is much to do
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- build.All(ctx, build.Options{Source: repo, Out: out, Only: []string{"hallmark-quota"}})
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if work, _ := filepath.Glob(filepath.Join(out, ".go-build-*", "go-build*", "b*")); len(work) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the go command made no work folder")
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("the interrupted build ended well")
	}
	for _, dir := range []string{temp, out} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}

// The supervisor and the quota helper are small and need no loader.
func TestHelpersAreStatic(t *testing.T) {
	dir := t.TempDir()
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	helpers := []string{"hallmark-supervisor", "hallmark-quota", build.Tenant}
	if err := build.All(t.Context(), build.Options{Source: repo, Out: dir, Only: helpers}); err != nil {
		t.Fatal(err)
	}
	for _, name := range helpers {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 6<<20 {
			t.Errorf("%s has %d bytes, the bound is 6 MiB", name, len(b))
		}
		if strings.Contains(string(b), "/lib64/ld-linux") {
			t.Errorf("%s names a loader", name)
		}
		if strings.Contains(string(b), repo+"/") {
			t.Errorf("%s names the folder in which it was built", name)
		}
	}
}
