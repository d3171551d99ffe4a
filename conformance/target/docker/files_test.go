// SPDX-License-Identifier: Apache-2.0

package docker_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
)

func TestFiles(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		tg := b.open()
		sb := b.sandbox(tg, target.Spec{})
		files, ctx := sb.Files(), b.Context()
		workspace := b.container(tg, sb).Workspace

		if err := files.Write(ctx, "script", []byte("#!/bin/sh\necho ran\n")); err != nil {
			t.Fatal(err)
		}
		if got := b.sh(sb, "./script; stat -c '%a %u %g' script"); got != "ran\n755 65532 65532" {
			t.Errorf("a written file is %q", got)
		}
		b.sh(sb, "mkdir -p d/e full; echo inside >d/e/f; touch full/x; ln -s d link; ln -s d/e/f leaf; ln -s /etc/shadow out; mkfifo fifo 2>/dev/null; true")
		if body, err := files.Read(ctx, "d/e/f"); err != nil || string(body) != "inside\n" {
			t.Errorf("%q, %v", body, err)
		}
		for name, kind := range map[string]string{"d": "dir", "d/e/f": "file", "leaf": "symlink", "out": "symlink"} {
			if e, err := files.Stat(ctx, name); err != nil || e.Kind != kind || e.Name != filepath.Base(name) {
				t.Errorf("%s is %+v, %v", name, e, err)
			}
		}
		if err := files.Write(ctx, "d/e/f", []byte("longer than before")); err != nil {
			t.Error(err)
		}
		if got := b.sh(sb, "cat d/e/f"); got != "longer than before" {
			t.Errorf("the tenant sees %q", got)
		}

		refused := func(what string, err error, code string, kind target.Kind) { t.Helper(); b.want(what, err, code, kind) }
		for _, name := range []string{"", "/etc/passwd", "..", "../x", "d/../../x", "d//e", "./d", "d/", "a\x00b", "."} {
			_, err := files.Read(ctx, name)
			if target.KindOf(err) != target.KindPathUnsafe {
				t.Errorf("reading %q: %v", name, err)
			}
			if err := files.Write(ctx, name, nil); target.KindOf(err) != target.KindPathUnsafe {
				t.Errorf("writing %q: %v", name, err)
			}
			if err := files.Remove(ctx, name); target.KindOf(err) != target.KindPathUnsafe {
				t.Errorf("removing %q: %v", name, err)
			}
		}
		for _, name := range []string{"out", "leaf", "d"} {
			_, err := files.Read(ctx, name)
			refused("read of "+name, err, docker.CodeNotRegular, target.KindPathUnsafe)
		}
		for _, name := range []string{"link/e/f", "script/x"} {
			_, err := files.Read(ctx, name)
			refused("read of "+name, err, docker.CodePathUnsafe, target.KindPathUnsafe)
			refused("write of "+name, files.Write(ctx, name, nil), docker.CodePathUnsafe, target.KindPathUnsafe)
		}
		_, err := files.Read(ctx, "absent")
		refused("read of absent", err, docker.CodeNotFound, target.KindNotFound)
		_, err = files.Stat(ctx, "absent/x")
		refused("stat of absent/x", err, docker.CodeNotFound, target.KindNotFound)
		refused("write of absent/x", files.Write(ctx, "absent/x", nil), docker.CodeNotFound, target.KindNotFound)
		refused("remove of absent", files.Remove(ctx, "absent"), docker.CodeNotFound, target.KindNotFound)
		refused("remove of full", files.Remove(ctx, "full"), docker.CodeNotRegular, target.KindPathUnsafe)
		refused("write of d", files.Write(ctx, "d", nil), docker.CodeNotRegular, target.KindPathUnsafe)

		// A FIFO that nobody writes to is refused at once.
		if err := unix.Mkfifo(filepath.Join(workspace, "pipe"), 0o666); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = files.Read(ctx, "pipe")
		refused("read of a FIFO", err, docker.CodeNotRegular, target.KindPathUnsafe)
		if time.Since(start) > time.Second {
			t.Errorf("the FIFO held the read for %s", time.Since(start))
		}

		// A write replaces a link, a removal removes it, and neither touches where it leads.
		if err := files.Write(ctx, "leaf", []byte("mine")); err != nil {
			t.Error(err)
		}
		if err := files.Remove(ctx, "out"); err != nil {
			t.Error(err)
		}
		if got := b.sh(sb, "cat d/e/f leaf; ls -A | grep hallmark- || true"); got != "longer than beforemine" {
			t.Errorf("%q", got)
		}
	})
}

// The tenant swaps a folder for a link that leads out while the API works below it.
func TestASwappedFolderLeadsNowhereElse(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	tg := b.open()
	sb := b.sandbox(tg, target.Spec{})
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("canary"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	before, err := oracle.HashTree(outside)
	if err != nil {
		t.Fatal(err)
	}
	workspace := b.container(tg, sb).Workspace
	dir, link := filepath.Join(workspace, "d"), filepath.Join(workspace, "l")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	var swaps atomic.Int64
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-done:
				return
			default:
				if unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
					swaps.Add(1)
				}
			}
		}
	}()
	files, wrote, refused := sb.Files(), 0, 0
	for range 3000 {
		switch err := files.Write(t.Context(), "d/f", []byte("changed")); {
		case err == nil:
			wrote++
		case target.KindOf(err) != "":
			refused++
		default:
			t.Fatalf("an untyped error: %v", err)
		}
		if body, err := files.Read(t.Context(), "d/f"); err == nil && string(body) != "changed" {
			t.Fatalf("read %q", body)
		}
		if err := files.Remove(t.Context(), "d/f"); err != nil && target.KindOf(err) == "" {
			t.Fatalf("an untyped error: %v", err)
		}
	}
	close(done)
	<-stopped
	if swaps.Load() < 1000 || wrote == 0 || refused == 0 {
		t.Errorf("no race: %d swaps, %d writes, %d refusals", swaps.Load(), wrote, refused)
	}
	after, err := oracle.HashTree(outside)
	if err != nil {
		t.Fatal(err)
	}
	if d := before.Diff(after); len(d) > 0 {
		t.Errorf("outside changed: %v", d)
	}
}
