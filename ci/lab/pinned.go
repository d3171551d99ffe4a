// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pinned is a package of another release than the one that runs here. That release gets no entry in
// apt's configuration, so its signed lists are not there to be asked: the digest stands for them.
type pinned struct {
	name, version string
	arch          string
	pool          string // of the file, from the root of an archive
	digest        string // sha256 of the file, in hex
}

// runscDeb13 is the runsc of Debian 13, a static program.
var runscDeb13 = pinned{
	name: "runsc", version: "0.0~20240729.0-4+b7", arch: "amd64",
	pool:   "pool/main/g/golang-gvisor-gvisor/runsc_0.0~20240729.0-4+b7_amd64.deb",
	digest: "3c25a5130dfac2f71237d5baad56ac86a255de87a0400f11b36a555156dc325a",
}

func (w pinned) folder() string { return folderName(w.name, w.version) }

// getPinned returns the folder with the files of a pinned package, fetching it when it is not there
// yet from an archive that apt is configured to use anyway.
func (p *packages) getPinned(ctx context.Context, w pinned) (string, error) {
	dir := filepath.Join(p.dir, w.folder())
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if _, arch, _ := strings.Cut(p.release, "/"); arch != w.arch {
		return "", fmt.Errorf("package %s %s is pinned for %s, this is %s", w.name, w.version, w.arch, arch)
	}
	archives, err := debianArchives(ctx)
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(p.dir, ".fetch-")
	if err != nil {
		return "", fmt.Errorf("fetch package %s: %w", w.name, err)
	}
	defer os.RemoveAll(tmp)
	deb := filepath.Join(tmp, "pinned.deb")
	fmt.Fprintf(p.out, "lab: extracting package %s %s into the cache (nothing is installed)\n", w.name, w.version)
	var last error
	for _, archive := range archives {
		if last = w.download(ctx, archive, deb); last == nil {
			return dir, p.extract(ctx, w.name, deb, dir)
		}
	}
	return "", &MissingError{
		What:   fmt.Sprintf("package %s %s cannot be downloaded: %v", w.name, w.version, last),
		Remedy: "configure an archive of Debian for apt that still has it",
	}
}

// download fetches the file with apt's own methods and checks it, whatever apt makes of the digest.
func (w pinned) download(ctx context.Context, archive, file string) error {
	out, err := exec.CommandContext(ctx, aptHelper, "-o", "APT::Sandbox::User=root", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20",
		"download-file", archive+w.pool, file, "SHA256:"+w.digest).CombinedOutput()
	if err != nil {
		return errors.New(lastLine(out))
	}
	return w.check(file)
}

// check compares a file with the pin.
func (w pinned) check(file string) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != w.digest {
		return fmt.Errorf("it has the digest %x, and %s is pinned", sum, w.digest)
	}
	return nil
}

// aptHelper is no command of administrators, so it lies on nobody's PATH.
const aptHelper = "/usr/lib/apt/apt-helper"

// debianArchives are the roots of the Debian archives that apt is configured to use, each with a
// slash at its end. One archive has the packages of all releases.
func debianArchives(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(ORIGIN)\t$(LABEL)\t$(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return nil, commandError("ask apt for its archives", err)
	}
	archives := debianOnly(string(out))
	if len(archives) == 0 {
		return nil, errors.New("apt is not configured to use an archive of Debian")
	}
	return archives, nil
}

// debianOnly picks the archives with the label of Debian's main one, each once.
func debianOnly(targets string) []string {
	var out []string
	seen := map[string]bool{}
	for line := range strings.Lines(targets) {
		origin, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
		label, root, _ := strings.Cut(rest, "\t")
		if origin != "Debian" || label != "Debian" || root == "" {
			continue
		}
		if root = strings.TrimSuffix(root, "/") + "/"; !seen[root] {
			seen[root] = true
			out = append(out, root)
		}
	}
	return out
}
