// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
)

func projectConfig(t testing.TB, dir, filesystem string) ProjectConfig {
	t.Helper()
	return ProjectConfig{
		Dir: dir, Filesystem: filesystem, FirstID: project.MinProjectID, LastID: project.MinProjectID + 99,
		Helper: helperPath, HelperDigest: fileDigest(t, helperPath), EngineMountinfo: selfMountinfo,
	}
}

// TestProjectNeedsEnforcement: on this directory's filesystem no kernel enforces project quota, and
// nothing is made.
func TestProjectNeedsEnforcement(t *testing.T) {
	var st unix.Statfs_t
	dir := t.TempDir()
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if asked, err := project.Ask(dir); err == nil && asked.Enforced {
		t.Fatalf("%s enforces project quota; give the tests another TMPDIR", dir)
	}
	for _, sub := range []string{"", "/missing"} {
		for _, fs := range []string{"ext4", "xfs"} {
			_, err := NewProject(projectConfig(t, dir+sub, fs))
			if !errors.Is(err, ErrNotEnforced) {
				t.Errorf("%s: %v", fs, err)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for name, change := range map[string]func(*ProjectConfig){
		"relative": func(c *ProjectConfig) { c.Dir = "ws" }, "filesystem": func(c *ProjectConfig) { c.Filesystem = "btrfs" },
		"engine's ids": func(c *ProjectConfig) { c.FirstID = 1 }, "no ids": func(c *ProjectConfig) { c.LastID = c.FirstID - 1 },
		"digest": func(c *ProjectConfig) { c.HelperDigest = "" }, "reserve": func(c *ProjectConfig) { c.ReserveInodes = -1 },
		"mountinfo": func(c *ProjectConfig) { c.EngineMountinfo = nil },
	} {
		c := projectConfig(t, dir, "xfs")
		change(&c)
		if _, err := NewProject(c); err == nil || errors.Is(err, ErrNotEnforced) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := projectConfig(t, dir, "xfs")
	c.HelperDigest = "sha256:" + strings.Repeat("0", 64)
	if _, err := NewProject(c); !errors.Is(err, ErrHelper) {
		t.Errorf("another helper: %v", err)
	}
}

// TestHelperRefusesWithoutEnforcement goes over the verbs as they are typed.
func TestHelperRefusesWithoutEnforcement(t *testing.T) {
	dir := t.TempDir()
	for args, code := range map[string]int{
		"apply D w 8388608 64 1048576 1048676 0 0": 18, "verify D w": 18, "usage D w": 18, "repair D w": 18, "release D w 10": 18, "list D": 18, "state D": 0,
		"apply D w 8388608 64 1048576 1048676 0": 2, "apply D w 8388608 64 x 1048676 0 0": 2, "list": 2, "purge D w": 2, "state D w": 2, "release D w": 2,
		"apply relative w 8388608 64 1048576 1048676 0 0": 2,
	} {
		c := exec.Command(helperPath, append([]string{"project"}, strings.Fields(strings.ReplaceAll(args, "D", dir))...)...)
		var stderr strings.Builder
		c.Stderr = &stderr
		out, _ := c.Output()
		if got := c.ProcessState.ExitCode(); got != code || (code == 0) != (stderr.Len() == 0) || (code == 0) == (len(out) == 0) {
			t.Errorf("%s: exit code %d instead of %d: %s%s", args, got, code, out, &stderr)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestEngineSeesTheSameDirectory(t *testing.T) {
	w := project.Workspace{Path: "/srv/ws/trees/h", Filesystem: "xfs", Major: 7, Minor: 3}
	good := mountinfo.Info{Major: 7, Minor: 3, FSType: "xfs", Root: "/", Mountpoint: "/srv/ws", Options: "rw,nosuid,nodev,relatime"}
	with := func(change func(*mountinfo.Info)) *mountinfo.Info {
		m := good
		change(&m)
		return &m
	}
	if err := matchProject(&good, &good, w); err != nil {
		t.Error(err)
	}
	for name, m := range map[string]*mountinfo.Info{
		"nothing": nil, "another device": with(func(m *mountinfo.Info) { m.Minor = 4 }), "another root": with(func(m *mountinfo.Info) { m.Root = "/other" }),
		"elsewhere": with(func(m *mountinfo.Info) { m.Mountpoint = "/srv" }), "another type": with(func(m *mountinfo.Info) { m.FSType = "ext4" }),
		"suid": with(func(m *mountinfo.Info) { m.Options = "rw,nodev" }), "devices": with(func(m *mountinfo.Info) { m.Options = "rw,nosuid" }),
		"read-only": with(func(m *mountinfo.Info) { m.Options = "ro,nosuid,nodev" }),
	} {
		if err := matchProject(m, &good, w); !errors.Is(err, ErrMissingMount) {
			t.Errorf("%s: %v", name, err)
		}
	}
	table := "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 7:9 / /srv/ws rw,nosuid,nodev - xfs /dev/b rw\n3 1 7:3 / /srv/ws rw,nosuid,nodev - xfs /dev/c rw\n4 1 7:4 / /srv/w rw - xfs /dev/d rw\n"
	found, err := mountinfo.GetMountsFromReader(strings.NewReader(table), above(w.Path))
	if err != nil || len(found) != 3 || lowest(found).Minor != 3 {
		t.Errorf("%+v, %v", found, err)
	}
}

// enforcing mounts an image of the filesystem with project quota, or skips: only where the kernel has no
// quota of that filesystem.
func enforcing(t *testing.T, filesystem string) string {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	img, point := base+"/img", base+"/mnt"
	mkfs, pkg, args := "mkfs.xfs", "xfsprogs", []string{"-q", img}
	if filesystem == "ext4" {
		mkfs, pkg, args = "mkfs.ext4", "e2fsprogs", []string{"-q", "-O", "project,quota", "-E", "quotatype=prjquota", img}
	}
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	packages, err := lab.Extract(cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	b, err := packages.Program(t.Context(), mkfs, pkg)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, 1<<30), os.Mkdir(point, 0o700)); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(b.Path, args...)
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(b.Libraries, ":"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", mkfs, err, out)
	}
	mount := func(options string) (string, error) {
		out, err := exec.Command("mount", "-t", filesystem, "-o", options, img, point).CombinedOutput()
		return strings.Join(strings.Fields(string(out)), " "), err
	}
	out, err := mount("loop,nosuid,nodev,prjquota")
	if err != nil {
		// The kernel's own word, not the mount's: without quota the same image mounts, if its features
		// allow, and quotactl_fd(2) is not there for it.
		if plain, perr := mount("loop,nosuid,nodev,ro"); perr == nil {
			st, aerr := project.Ask(point)
			if uerr := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); uerr != nil {
				t.Fatal(uerr)
			}
			if aerr != nil || st.Accounted {
				t.Fatalf("mount with prjquota: %s; without it the kernel says %+v, %v", out, st, aerr)
			}
		} else if filesystem != "ext4" { // ext4 with the feature quota needs the format to mount at all
			t.Fatalf("mount without quota: %s", plain)
		}
		if quotaFormat(filesystem) {
			t.Fatalf("the kernel has the quota format of %s, and a mount with prjquota fails: %s", filesystem, out)
		}
		t.Skipf("NOT MEASURED HERE: this kernel has no project quota of %s (%s)", filesystem, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err != nil {
			t.Error(err)
		}
	})
	return point
}

// quotaFormat says whether this kernel has what project quota of a filesystem needs, by its symbols.
func quotaFormat(filesystem string) bool {
	symbol := map[string]string{"xfs": "xfs_qm_scall_setqlim", "ext4": "v2_read_file_info"}[filesystem]
	b, err := os.ReadFile("/proc/kallsyms")
	return err != nil || strings.Contains(string(b), " "+symbol)
}

// TestProjectBoundsHold is what only a kernel can say: bytes and inodes end at the limit, for the
// tenant, and the usage is what was written.
func TestProjectBoundsHold(t *testing.T) {
	for _, filesystem := range []string{"xfs", "ext4"} {
		t.Run(filesystem, func(t *testing.T) {
			point := enforcing(t, filesystem)
			p, err := NewProject(projectConfig(t, point+"/ws", filesystem))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			m, err := p.Prepare(t.Context(), Spec{WorkspaceID: "w", Bytes: 16 * mib, Inodes: 64})
			if err != nil {
				t.Fatal(err)
			}
			u, err := p.Usage(t.Context(), "w")
			if want := (Usage{BytesLimit: 16 * mib, InodesLimit: 64}); err != nil || u != want {
				t.Errorf("empty: %+v, %v", u, err)
			}
			if out := tenantDD(t, m.Path, "if=/dev/zero", "bs=64k", "oflag=sync", "of=/proc/self/fd/3/f"); !strings.Contains(out, "No space left") && !strings.Contains(out, "quota exceeded") {
				t.Errorf("dd: %s", out)
			}
			for i := range 70 {
				tenantDD(t, m.Path, "if=/dev/null", fmt.Sprintf("of=/proc/self/fd/3/e%d", i))
			}
			u, err = p.Usage(t.Context(), "w")
			if err != nil || u.Inodes != 64 || u.Bytes > 16*mib || u.Bytes < 15*mib {
				t.Errorf("full: %+v, %v", u, err)
			}
			if err := p.Verify(t.Context(), "w"); err != nil {
				t.Error(err)
			}
			if err := errors.Join(p.Release(t.Context(), "w"), p.Purge(t.Context(), "w")); err != nil {
				t.Error(err)
			}
			if ids, err := p.List(t.Context()); err != nil || len(ids) > 0 {
				t.Errorf("left behind: %q, %v", ids, err)
			}
		})
	}
}
