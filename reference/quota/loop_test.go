// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPreparedWorkspaceIsWhatWasPromised(t *testing.T) {
	l := newLoop(t, nil)
	m := prepare(t, l, "w:1", 64*mib, 4096)

	var st unix.Stat_t
	if err := unix.Stat(m.Path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 65532 || st.Gid != 65532 || st.Mode&0o7777 != 0o755 {
		t.Errorf("root directory: uid %d, gid %d, mode %o", st.Uid, st.Gid, st.Mode)
	}
	if unix.Major(st.Dev) != m.DeviceMajor || unix.Minor(st.Dev) != m.DeviceMinor {
		t.Errorf("device is %d:%d, told %d:%d", unix.Major(st.Dev), unix.Minor(st.Dev), m.DeviceMajor, m.DeviceMinor)
	}
	if names, err := os.ReadDir(m.Path); err != nil || len(names) != 0 {
		t.Errorf("not empty: %v, %v", names, err)
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(info), " / "+m.Path+" rw,nosuid,nodev,noatime ") {
		t.Error("mountinfo does not show nosuid,nodev,noatime")
	}
	images, err := filepath.Glob(l.cfg.Dir + "/images/*")
	if err != nil || len(images) != 1 {
		t.Fatalf("images: %q, %v", images, err)
	}
	if err := unix.Stat(images[0], &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode != unix.S_IFREG|0o600 || st.Uid != 0 || st.Blocks*512 < st.Size {
		t.Errorf("image: mode %o, uid %d, %d of %d bytes allocated", st.Mode, st.Uid, st.Blocks*512, st.Size)
	}
	if strings.Contains(images[0], "w:1") {
		t.Error("the id is in a path")
	}
	if err := unix.Stat(l.cfg.Dir, &st); err != nil || st.Mode&0o7777 != 0o700 {
		t.Errorf("directory mode %o, %v", st.Mode, err)
	}

	if again := prepare(t, l, "w:1", 64*mib, 4096); again != m {
		t.Errorf("a second prepare gives %+v after %+v", again, m)
	}
	if err := l.Verify(context.Background(), "w:1"); err != nil {
		t.Error(err)
	}
	if ids, err := l.List(context.Background()); err != nil || len(ids) != 1 || ids[0] != "w:1" {
		t.Errorf("list: %q, %v", ids, err)
	}
}

// TestBoundsAreExact asks the kernel, as a sandbox's statfs would, on an empty workspace.
func TestBoundsAreExact(t *testing.T) {
	l := newLoop(t, nil)
	for _, tt := range []struct{ bytes, inodes int64 }{
		{4 * mib, 16}, {4*mib + 4096, 1023}, {64 * mib, 4096}, {64 * mib, 1000}, {128*mib - 8192, 4096}, {123 * mib, 2048},
		{200 * mib, 5000}, {512 * mib, 32768}, {1024 * mib, 65536},
	} {
		t.Run(fmt.Sprintf("%d-%d", tt.bytes, tt.inodes), func(t *testing.T) {
			id := fmt.Sprintf("w%d-%d", tt.bytes, tt.inodes)
			start := time.Now()
			m := prepare(t, l, id, tt.bytes, tt.inodes)
			fresh := time.Since(start)
			var st unix.Statfs_t
			if err := unix.Statfs(m.Path, &st); err != nil {
				t.Fatal(err)
			}
			if got := int64(st.Bavail) * st.Bsize; got != tt.bytes || m.Bytes != tt.bytes {
				t.Errorf("%d bytes available, told %d, asked for %d", got, m.Bytes, tt.bytes)
			}
			if int64(st.Ffree) != tt.inodes || m.Inodes != tt.inodes {
				t.Errorf("%d inodes free, told %d, asked for %d", st.Ffree, m.Inodes, tt.inodes)
			}
			if st.Blocks != m.StatfsBlocks || uint64(st.Bsize) != m.StatfsBlockSize || st.Files != m.StatfsInodes {
				t.Errorf("statfs %+v, told %+v", st, m)
			}
			if u := usage(t, l, id); u != (Usage{BytesLimit: tt.bytes, InodesLimit: tt.inodes}) {
				t.Errorf("usage of an empty workspace: %+v", u)
			}
			release(t, l, id)
			start = time.Now()
			prepare(t, l, id, tt.bytes, tt.inodes)
			t.Logf("fresh %v, again %v", fresh.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
			release(t, l, id)
			if err := l.Purge(context.Background(), id); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTenantFillsToTheLimitAndNoFurther(t *testing.T) {
	l := newLoop(t, nil)
	for _, flags := range []string{"", "oflag=direct", "oflag=sync"} {
		t.Run("bytes"+flags, func(t *testing.T) {
			m := prepare(t, l, "w", 16*mib, 256)
			args := []string{"if=/dev/zero", "bs=64k"}
			if flags != "" {
				args = append(args, flags)
			}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if out := tenantDD(t, m.Path, append(args, fmt.Sprintf("of=/proc/self/fd/3/f%d", i))...); !strings.Contains(out, "No space left") {
						t.Errorf("dd: %s", out)
					}
				})
			}
			wg.Wait()
			// ext4 holds blocks back for what is not allocated yet: the last ones are free after that.
			unix.Sync()
			tenantDD(t, m.Path, "if=/dev/zero", "bs=4k", "oflag=sync", "of=/proc/self/fd/3/rest")
			// A file in many pieces may need a block for its map, and leave one that a new file can take.
			for i := range 3 {
				tenantDD(t, m.Path, "if=/dev/zero", "bs=4k", "count=1", "oflag=sync", fmt.Sprintf("of=/proc/self/fd/3/last%d", i))
			}
			unix.Sync()
			u := usage(t, l, "w")
			image := int64(m.StatfsBlocks * m.StatfsBlockSize)
			t.Logf("usage %d of %d bytes (%+d), filesystem %d", u.Bytes, u.BytesLimit, u.Bytes-u.BytesLimit, image)
			if u.Bytes < u.BytesLimit || u.Bytes > image {
				t.Errorf("usage is %+v", u)
			}
			var st unix.Statfs_t
			if err := unix.Statfs(m.Path, &st); err != nil || st.Bavail != 0 {
				t.Errorf("%d blocks are still available, %v", st.Bavail, err)
			}
			release(t, l, "w")
			if err := l.Purge(context.Background(), "w"); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("inodes", func(t *testing.T) {
		m := prepare(t, l, "w", 8*mib, 300)
		tree := openTree(t, m)
		defer tree.Close()
		made := 0
		for made < 400 && tree.Mkdir(context.Background(), fmt.Appendf(nil, "d%d", made)) == nil {
			made++
		}
		if u := usage(t, l, "w"); made != 300 || u.Inodes != 300 || u.InodesLimit != 300 {
			t.Errorf("made %d, usage %+v", made, u)
		}
	})
}

func TestDataSurvivesReleaseAndCrash(t *testing.T) {
	l := newLoop(t, nil)
	m := prepare(t, l, "w", 16*mib, 256)
	token := rand.Text()
	if err := os.WriteFile(m.Path+"/kept", []byte(token), 0o644); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	image, err := filepath.Glob(l.cfg.Dir + "/images/*.img")
	if err != nil || len(image) != 1 {
		t.Fatal(image, err)
	}
	// What a host crash leaves: the image as it is on disk while mounted, journal not replayed.
	crashed, err := os.ReadFile(image[0])
	if err != nil {
		t.Fatal(err)
	}
	release(t, l, "w")
	m = prepare(t, l, "w", 16*mib, 256)
	if b, err := os.ReadFile(m.Path + "/kept"); err != nil || string(b) != token {
		t.Errorf("after release: %q, %v", b, err)
	}
	release(t, l, "w")
	f, err := os.OpenFile(image[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(crashed); err != nil {
		t.Fatal(err)
	}
	f.Close()
	m = prepare(t, l, "w", 16*mib, 256)
	if b, err := os.ReadFile(m.Path + "/kept"); err != nil || string(b) != token {
		t.Errorf("after a crash: %q, %v", b, err)
	}
	if u := usage(t, l, "w"); u.Inodes != 1 || u.Bytes != 4096 {
		t.Errorf("after a crash: %+v", u)
	}
}

func TestHostReserveRefusesBeforeAnythingExists(t *testing.T) {
	base := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(base, &st); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*LoopConfig){
		"bytes":  func(c *LoopConfig) { c.ReserveBytes = int64(st.Bavail)*st.Frsize - 8*mib },
		"inodes": func(c *LoopConfig) { c.ReserveInodes = int64(st.Ffree) },
	} {
		l := newLoop(t, change)
		_, err := l.Prepare(context.Background(), Spec{WorkspaceID: "w", Bytes: 16 * mib, Inodes: 256})
		if !errors.Is(err, ErrReserve) {
			t.Errorf("%s: got %v, want ErrReserve", name, err)
		}
		if left := leftovers(t, l.cfg.Dir); len(left) > 0 {
			t.Errorf("%s: made %q", name, left)
		}
	}
}

func TestDeviceInUseIsBusy(t *testing.T) {
	l := newLoop(t, nil)
	m := prepare(t, l, "w", 8*mib, 64)
	holder := elsewhere(t, filepath.Dir(m.Path))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	who := fmt.Sprintf("mounted elsewhere by process %d (\"sleep\")", holder.Process.Pid)
	if err := l.Release(ctx, "w"); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), who) {
		t.Errorf("release: got %v, want ErrBusy that names %s", err, who)
	}
	// Unmounted here, held there: a second device on the same image would corrupt it.
	if _, err := l.Prepare(context.Background(), Spec{WorkspaceID: "w", Bytes: 8 * mib, Inodes: 64}); !errors.Is(err, ErrBusy) {
		t.Errorf("prepare: got %v, want ErrBusy", err)
	}
	if err := l.Purge(context.Background(), "w"); !errors.Is(err, ErrBusy) {
		t.Errorf("purge: got %v, want ErrBusy", err)
	}
	if err := l.Verify(context.Background(), "w"); !errors.Is(err, ErrMissingMount) {
		t.Errorf("verify: got %v, want ErrMissingMount", err)
	}
	stop(holder)
	release(t, l, "w")
	if again := prepare(t, l, "w", 8*mib, 64); again.Path != m.Path {
		t.Errorf("path moved from %s to %s", m.Path, again.Path)
	}
	if err := l.Purge(context.Background(), "w"); !errors.Is(err, ErrBusy) {
		t.Errorf("purge while mounted: got %v, want ErrBusy", err)
	}
	// An open file on the host keeps the mount.
	f, err := os.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	ctx2, cancel2 := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel2()
	if err := l.Release(ctx2, "w"); !errors.Is(err, ErrBusy) {
		t.Errorf("release with an open descriptor: got %v, want ErrBusy", err)
	}
	f.Close()
}

func TestMissingMountIsAnErrorNotADirectory(t *testing.T) {
	before := elsewhere(t, "/nowhere") // an engine that will not see the mount
	private := false
	l := newLoop(t, func(c *LoopConfig) {
		c.EngineMountinfo = func() (string, error) {
			if private {
				return fmt.Sprintf("/proc/%d/mountinfo", before.Process.Pid), nil
			}
			return selfMountinfo()
		}
	})
	ctx := context.Background()
	if err := l.Verify(ctx, "w"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: got %v, want ErrNotFound", err)
	}
	m := prepare(t, l, "w", 8*mib, 64)
	private = true
	if err := l.Verify(ctx, "w"); !errors.Is(err, ErrMissingMount) {
		t.Errorf("engine elsewhere: got %v, want ErrMissingMount", err)
	}
	if _, err := l.Prepare(ctx, Spec{WorkspaceID: "w", Bytes: 8 * mib, Inodes: 64}); !errors.Is(err, ErrMissingMount) {
		t.Errorf("prepare, engine elsewhere: got %v, want ErrMissingMount", err)
	}
	private = false

	if err := unix.Mount("tmpfs", m.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k"); err != nil {
		t.Fatal(err)
	}
	if err := l.Verify(ctx, "w"); !errors.Is(err, ErrMissingMount) {
		t.Errorf("something on top: got %v, want ErrMissingMount", err)
	}
	if err := unix.Unmount(m.Path, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", m.Path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV, ""); err != nil {
		t.Fatal(err)
	}
	if err := l.Verify(ctx, "w"); !errors.Is(err, ErrMissingMount) {
		t.Errorf("without nosuid: got %v, want ErrMissingMount", err)
	}

	release(t, l, "w")
	if err := l.Verify(ctx, "w"); !errors.Is(err, ErrMissingMount) {
		t.Errorf("unmounted: got %v, want ErrMissingMount", err)
	}
	if _, err := l.Usage(ctx, "w"); !errors.Is(err, ErrMissingMount) {
		t.Errorf("usage, unmounted: got %v, want ErrMissingMount", err)
	}
	if err := os.WriteFile(m.Path+"/x", nil, 0o600); !errors.Is(err, unix.EPERM) {
		t.Errorf("root could write underneath: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(m.Path, &st); err != nil || st.Mode&0o7777 != 0 || st.Uid != 0 {
		t.Errorf("mount point: mode %o, uid %d, %v", st.Mode, st.Uid, err)
	}
}

func TestDamageFailsClosed(t *testing.T) {
	l := newLoop(t, nil)
	spec := Spec{WorkspaceID: "w", Bytes: 8 * mib, Inodes: 64}
	damage := map[string]func(t *testing.T, image string){
		"filesystem": func(t *testing.T, image string) {
			f, err := os.OpenFile(image, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(make([]byte, mib), 0); err != nil {
				t.Fatal(err)
			}
		},
		"sparse": func(t *testing.T, image string) {
			f, err := os.OpenFile(image, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 6*mib, mib); err != nil {
				t.Fatal(err)
			}
		},
		"size": func(t *testing.T, image string) {
			if err := os.Truncate(image, 6*mib); err != nil {
				t.Fatal(err)
			}
		},
		"gone": func(t *testing.T, image string) {
			if err := os.Remove(image); err != nil {
				t.Fatal(err)
			}
		},
		"readable": func(t *testing.T, image string) {
			if err := os.Chmod(image, 0o644); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, f := range damage {
		prepare(t, l, "w", spec.Bytes, spec.Inodes)
		release(t, l, "w")
		image, err := filepath.Glob(l.cfg.Dir + "/images/*.img")
		if err != nil || len(image) != 1 {
			t.Fatal(image, err)
		}
		f(t, image[0])
		if _, err := l.Prepare(context.Background(), spec); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v, want ErrCorrupt", name, err)
		}
		if err := l.Purge(context.Background(), "w"); err != nil {
			t.Fatalf("%s: purge: %v", name, err)
		}
	}
}

func TestBoundsNeverChange(t *testing.T) {
	l := newLoop(t, nil)
	prepare(t, l, "w", 8*mib, 64)
	for _, s := range []Spec{{"w", 16 * mib, 64}, {"w", 8 * mib, 128}} {
		if _, err := l.Prepare(context.Background(), s); !errors.Is(err, ErrMismatch) {
			t.Errorf("%+v: got %v, want ErrMismatch", s, err)
		}
	}
	for _, s := range []Spec{{"v", 0, 64}, {"v", -1, 64}, {"v", 4*mib - 1, 64}, {"v", 8 * mib, 15}, {"v", 8 * mib, 1 << 40}, {"v", 1 << 60, 64}} {
		if _, err := l.Prepare(context.Background(), s); !errors.Is(err, ErrSpec) {
			t.Errorf("%+v: got %v, want ErrSpec", s, err)
		}
	}
	if _, err := l.Prepare(context.Background(), Spec{"../escape", 8 * mib, 64}); err == nil {
		t.Error("an id with a slash was taken")
	}
}

func TestConcurrentPreparesAgree(t *testing.T) {
	l := newLoop(t, nil)
	const n = 12
	mounts := make([]Mount, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			mounts[i], err = l.Prepare(context.Background(), Spec{WorkspaceID: fmt.Sprintf("w%d", i%3), Bytes: 8 * mib, Inodes: 64})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range mounts {
		if mounts[i] != mounts[i%3] {
			t.Errorf("%+v and %+v for one workspace", mounts[i], mounts[i%3])
		}
	}
	if images, _ := filepath.Glob(l.cfg.Dir + "/images/*"); len(images) != 3 {
		t.Errorf("images: %q", images)
	}
}

// TestHelperKilledAnywhereRecovers kills the helper's whole session after ever longer
// times, in each verb, and then finishes the work. The times reach twice as far as the same verb
// took a moment before, so that a slow machine is killed as far into its work as a fast one.
func TestHelperKilledAnywhereRecovers(t *testing.T) {
	l := newLoop(t, nil)
	spec := Spec{WorkspaceID: "w", Bytes: 64 * mib, Inodes: 4096}
	killed, finished := 0, 0
	attempt := func(after time.Duration, f func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		defer cancel()
		if err := f(ctx); err != nil {
			killed++
		} else {
			finished++
		}
	}
	preparing, releasing, purging := time.Second, time.Second, time.Second
	took := func(last *time.Duration, f func()) {
		began := time.Now()
		f()
		*last = time.Since(began)
	}
	took(&preparing, func() { prepare(t, l, "w", spec.Bytes, spec.Inodes) })
	took(&releasing, func() { release(t, l, "w") })
	took(&purging, func() {
		if err := l.Purge(context.Background(), "w"); err != nil {
			t.Fatal(err)
		}
	})
	for i := range 40 {
		part := func(whole time.Duration) time.Duration { return 2 * whole * time.Duration(i) / 40 }
		after := part(preparing)
		attempt(after, func(ctx context.Context) error { _, err := l.Prepare(ctx, spec); return err })
		if i%2 == 0 {
			if _, err := l.Prepare(context.Background(), spec); err != nil {
				t.Fatalf("prepare after a kill at %v: %v", after, err)
			}
			if u := usage(t, l, "w"); u != (Usage{BytesLimit: spec.Bytes, InodesLimit: spec.Inodes}) {
				t.Fatalf("after a kill at %v: %+v", after, u)
			}
		}
		var d struct {
			Found bool `json:"found"`
		}
		attempt(part(releasing), func(ctx context.Context) error { return l.call(ctx, &d, "release", "w", "1000") })
		release(t, l, "w")
		attempt(part(purging), func(ctx context.Context) error { return l.Purge(ctx, "w") })
		if err := l.Purge(context.Background(), "w"); err != nil {
			t.Fatalf("purge after a kill at %v: %v", after, err)
		}
		if left := leftovers(t, l.cfg.Dir); len(left) > 0 {
			t.Fatalf("after a kill at %v: %q", after, left)
		}
	}
	t.Logf("killed %d, finished %d", killed, finished)
	if killed < 30 || finished < 10 {
		t.Errorf("too few witnesses: killed %d, finished %d", killed, finished)
	}
}

func TestOtherHelperIsNeverRun(t *testing.T) {
	l := newLoop(t, nil)
	dir := t.TempDir()
	mark := dir + "/ran"
	fake := dir + "/helper"
	if err := os.WriteFile(fake, []byte("#!/bin/sh\ntouch "+mark+"\necho '{}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(fake).CombinedOutput(); err != nil {
		t.Fatalf("the fake does not work: %v %s", err, out)
	}
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	good := l.cfg.Helper
	l.cfg.Helper = fake
	if err := l.Verify(context.Background(), "w"); !errors.Is(err, ErrHelper) {
		t.Errorf("got %v, want ErrHelper", err)
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("a helper with another digest was run")
	}
	writable := dir + "/writable"
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(writable, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(writable, 0o757); err != nil {
		t.Fatal(err)
	}
	l.cfg.Helper = writable
	if err := l.Verify(context.Background(), "w"); !errors.Is(err, ErrHelper) {
		t.Errorf("writable by others: got %v, want ErrHelper", err)
	}
	l.cfg.Helper = good
}

func TestHelperArgvIsStrict(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := dir + "/ws"
	for _, argv := range [][]string{
		{}, {"loop"}, {"loop", "mount"}, {"loop", "mount", d}, {"loop", "mount", d, "w", "extra"}, {"loop", "format", d, "w"},
		{"loop", "create", d, "w", "8388608", "64", "0"}, {"loop", "create", d, "w", "8388608", "64", "0", "0", "0"},
		{"loop", "create", d, "w", "+8388608", "64", "0", "0"}, {"loop", "create", d, "w", "-1", "64", "0", "0"},
		{"loop", "create", d, "w", "0x800000", "64", "0", "0"}, {"loop", "create", d, "w", "8388608", "064", "0", "0"},
		{"loop", "create", d, "w", "99999999999999999999", "64", "0", "0"}, {"prj", "apply", d, "w"}, {"version", "x"},
		{"loop", "mount", "relative", "w"}, {"loop", "mount", d + "/../ws", "w"}, {"loop", "mount", d, "../w"}, {"loop", "mount", d, ""},
		{"-h"}, {"loop", "list", d, "w"},
	} {
		out, err := exec.Command(helperPath, argv...).Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || len(out) != 0 || len(exit.Stderr) == 0 {
			t.Errorf("%q: %v, stdout %q", argv, err, out)
		}
	}
	if images, _ := filepath.Glob(d + "/*/*"); len(images) != 0 {
		t.Errorf("made %q", images)
	}
}

func BenchmarkPrepare(b *testing.B) {
	for _, size := range []int64{64 * mib, 1024 * mib} {
		b.Run(fmt.Sprintf("%dMiB", size/mib), func(b *testing.B) {
			l := newLoop(b, nil)
			for b.Loop() {
				prepare(b, l, "w", size, 65536/(1024*mib/size))
				b.StopTimer()
				release(b, l, "w")
				if err := l.Purge(context.Background(), "w"); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
