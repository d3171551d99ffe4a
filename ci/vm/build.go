// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// buildInit compiles the guest's init. The compiler's own cache makes a second time cheap, and its bytes depend on
// the sources and the compiler only.
func buildInit(ctx context.Context, o Options) (string, error) {
	file := filepath.Join(o.dir(), "init")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", file, "./ci/vm/guest")
	cmd.Dir = o.Repo
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=linux", "GOARCH="+debian13.Arch, "GOAMD64=v1", "GOEXPERIMENT=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the guest's init: %w: %s", err, lastLine(out))
	}
	return file, nil
}

// build makes dir/image, whole.
func build(ctx context.Context, o Options, r recipe, dir, initFile string, rec Record) error {
	ex, err := lab.Extract(o.Cache, o.Out)
	if err != nil {
		return err
	}
	if err := ex.SmallTools(ctx); err != nil {
		return err
	}
	debs, err := o.packageFiles(ctx, r)
	if err != nil {
		return err
	}
	for _, d := range debs {
		digest, err := lab.FileDigest(d)
		if err != nil {
			return err
		}
		rec.Packages = append(rec.Packages, Package{filepath.Base(d), digest})
	}
	tree, image := filepath.Join(dir, "tree"), filepath.Join(dir, "image")
	if err := os.Mkdir(image, 0o755); err != nil {
		return err
	}
	if rec.Release, err = makeTree(ctx, tree, debs, initFile, filepath.Join(image, kernelFile), rec.Key); err != nil {
		return err
	}
	root := filepath.Join(image, rootFile)
	if err := makeDisk(ctx, tree, root, r.DiskSize); err != nil {
		return err
	}
	body, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(image, recordFile), append(body, '\n'), 0o644), os.Chmod(root, 0o444))
}

// packageFiles returns the recipe's package files, from the cache when it has them all. The kernel is the last.
func (o Options) packageFiles(ctx context.Context, r recipe) ([]string, error) {
	dir := o.packagesDir(r)
	list := filepath.Join(dir, "files.json")
	var names []string
	if body, err := os.ReadFile(list); err == nil && json.Unmarshal(body, &names) == nil && len(names) > 0 {
		return inFolder(dir, names), nil
	}
	o.say("fetching the packages of Debian %s into the cache (nothing is installed)", r.Suite)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	tmp, remove, err := o.Temp(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := openSuite(ctx, tmp, r)
	if err != nil {
		return nil, err
	}
	files, err := s.fetch(ctx, r)
	if err != nil {
		return nil, err
	}
	keep := filepath.Join(tmp, "keep")
	if err := os.Mkdir(keep, 0o755); err != nil {
		return nil, err
	}
	for _, f := range files {
		names = append(names, filepath.Base(f))
		if err := os.Rename(f, filepath.Join(keep, filepath.Base(f))); err != nil {
			return nil, err
		}
	}
	body, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(keep, filepath.Base(list)), body, 0o644); err != nil {
		return nil, err
	}
	return inFolder(dir, names), os.Rename(keep, dir)
}

func inFolder(dir string, names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, filepath.Join(dir, n))
	}
	return out
}

// makeTree extracts the packages into tree and prepares it for init, and takes the kernel out. It returns the
// kernel's release.
func makeTree(ctx context.Context, tree string, debs []string, initFile, kernel, key string) (string, error) {
	ordered := slices.Clone(debs)
	slices.SortStableFunc(ordered, func(a, b string) int { return first(a) - first(b) })
	for _, d := range ordered {
		if err := command(ctx, "dpkg-deb", "-x", d, tree); err != nil {
			return "", err
		}
	}
	boot, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(boot) != 1 {
		return "", fmt.Errorf("the kernel's package holds %d kernels", len(boot))
	}
	release := strings.TrimPrefix(filepath.Base(boot[0]), "vmlinuz-")
	if err := os.Rename(boot[0], kernel); err != nil {
		return "", err
	}
	if err := plainModules(ctx, tree, release); err != nil {
		return "", err
	}
	if err := configure(tree, initFile, key); err != nil {
		return "", err
	}
	// Both are programs of the guest, run in its tree: the host may have none, or others.
	if err := command(ctx, "chroot", tree, "/usr/sbin/ldconfig"); err != nil {
		return "", err
	}
	return release, command(ctx, "chroot", tree, "/usr/sbin/depmod", release)
}

// first puts base-files before everything: it has the links from /bin and the like into /usr.
func first(deb string) int {
	if strings.HasPrefix(filepath.Base(deb), "base-files_") {
		return 0
	}
	return 1
}

// plainModules uncompresses the modules: depmod and modprobe of the guest do not read them otherwise.
func plainModules(ctx context.Context, tree, release string) error {
	var files []string
	err := filepath.WalkDir(filepath.Join(tree, "usr", "lib", "modules", release), func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".ko.xz") {
			files = append(files, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("the kernel %s has no compressed module: its package is laid out in another way", release)
	}
	for part := range slices.Chunk(files, 256) {
		if err := command(ctx, filepath.Join(tree, "usr", "bin", "busybox"), append([]string{"unxz"}, part...)...); err != nil {
			return err
		}
	}
	return nil
}

// configure does what the packages' own scripts would, as far as the guest needs it.
func configure(tree, initFile, key string) error {
	in := func(p string) string { return filepath.Join(tree, p) }
	for _, dir := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/zoneinfo", "boot"} {
		if err := os.RemoveAll(in(dir)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp", "root", "quota", "boot", "etc", "var/tmp", "var/lib/docker"} {
		if err := os.MkdirAll(in(dir), 0o755); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"usr/sbin/iptables": "iptables-nft", "usr/sbin/ip6tables": "ip6tables-nft"} {
		if err := os.Symlink(to, in(link)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for from, to := range map[string]string{"usr/share/base-passwd/passwd.master": "etc/passwd", "usr/share/base-passwd/group.master": "etc/group", initFile: "init"} {
		if from != initFile {
			from = in(from)
		}
		body, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if to == "init" {
			mode = 0o755
		}
		if err := os.WriteFile(in(to), body, mode); err != nil {
			return err
		}
	}
	// The guest is no host of its own: each start of an image is the same one.
	if err := os.WriteFile(in("etc/machine-id"), []byte(key+"\n"), 0o444); err != nil {
		return err
	}
	return os.WriteFile(in("etc/hosts"), []byte("127.0.0.1 localhost hallmark-guest\n"), 0o644)
}

// makeDisk puts the tree into a file system, without a mount.
func makeDisk(ctx context.Context, tree, file string, size int64) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	return command(ctx, "mkfs.ext4", "-q", "-F", "-d", tree, "-L", "guest", "-m", "0", "-E", "lazy_itable_init=1,root_owner=0:0", file)
}

func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, lastLine(out))
	}
	return nil
}
