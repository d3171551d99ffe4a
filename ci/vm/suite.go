// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// keyring has the keys of Debian's releases, on Debian by itself and elsewhere from the package of that name.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// suite asks apt for another release than the host's, with lists and a package state of its own: the host's apt, its
// lists and what is installed here are neither asked nor changed. The archive is one that apt uses here anyway, and
// what comes is checked against the release's signature.
type suite struct {
	dir     string   // apt's own
	options []string // name=value
}

// openSuite fetches the lists of a release into dir.
func openSuite(ctx context.Context, dir string, r recipe) (*suite, error) {
	if _, err := os.Stat(keyring); err != nil {
		return nil, &lab.MissingError{What: "the keys of Debian's archive are not here: " + err.Error(), Remedy: "apt-get install debian-archive-keyring"}
	}
	archives, err := lab.Archives(ctx)
	if err != nil {
		return nil, &lab.MissingError{What: err.Error(), Remedy: "run this on Debian"}
	}
	for _, d := range []string{"lists/partial", "archives/partial", "preferences"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources := fmt.Sprintf("deb [arch=%s signed-by=%s] %s %s main\n", r.Arch, keyring, archives[0], r.Suite)
	for name, body := range map[string]string{"sources.list": sources, "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			return nil, err
		}
	}
	s := &suite{dir: dir}
	// The host's configuration still holds: proxies, credentials and time-outs are in it.
	for name, value := range map[string]string{
		"Dir::State": dir, "Dir::State::status": filepath.Join(dir, "status"), "Dir::State::lists": filepath.Join(dir, "lists"),
		"Dir::Cache": dir, "Dir::Cache::archives": filepath.Join(dir, "archives"),
		"Dir::Etc::sourcelist": filepath.Join(dir, "sources.list"), "Dir::Etc::sourceparts": "-",
		"Dir::Etc::preferences": filepath.Join(dir, "none"), "Dir::Etc::preferencesparts": filepath.Join(dir, "preferences"),
		"APT::Architecture": r.Arch, "APT::Sandbox::User": "root", "APT::Install-Recommends": "false", "Acquire::Languages": "none",
		"APT::Keep-Downloaded-Packages": "true",
	} {
		s.options = append(s.options, name+"="+value)
	}
	if out, err := s.apt(ctx, "apt-get", "-q", "update"); err != nil {
		return nil, &lab.MissingError{What: "the package lists of " + r.Suite + " cannot be fetched: " + lastLine(out), Remedy: "make `apt-get update` work (network, sources), then run this again"}
	}
	return s, nil
}

func (s *suite) apt(ctx context.Context, program string, args ...string) ([]byte, error) {
	var all []string
	for _, o := range s.options {
		all = append(all, "-o", o)
	}
	cmd := exec.CommandContext(ctx, program, append(all, args...)...)
	cmd.Dir = filepath.Join(s.dir, "archives")
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		return append(out.Bytes(), errs.Bytes()...), err
	}
	return out.Bytes(), nil
}

// fetch downloads the recipe's packages with what they depend on, and the kernel without: its dependencies are for a
// start through an initramfs. It returns the files, the kernel's last.
func (s *suite) fetch(ctx context.Context, r recipe) ([]string, error) {
	fail := func(what string, out []byte) error {
		return &lab.MissingError{What: what + " cannot be downloaded: " + lastLine(out), Remedy: "run this again when the archive can be reached"}
	}
	if out, err := s.apt(ctx, "apt-get", append([]string{"-q", "-y", "--download-only", "install"}, r.Packages...)...); err != nil {
		return nil, fail("the guest's packages", out)
	}
	debs, err := filepath.Glob(filepath.Join(s.dir, "archives", "*.deb"))
	if err != nil || len(debs) < len(r.Packages) {
		return nil, fmt.Errorf("apt left %d package files for %d packages and what they need", len(debs), len(r.Packages))
	}
	out, err := s.apt(ctx, "apt-cache", "depends", r.Kernel)
	if err != nil {
		return nil, fail("the kernel "+r.Kernel, out)
	}
	kernel := ""
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, "linux-image-") {
			kernel = name
		}
	}
	if kernel == "" {
		return nil, fmt.Errorf("the package %s names no kernel", r.Kernel)
	}
	if out, err := s.apt(ctx, "apt-get", "-q", "download", kernel); err != nil {
		return nil, fail("the kernel "+kernel, out)
	}
	files, err := filepath.Glob(filepath.Join(s.dir, "archives", kernel+"_*.deb"))
	if err != nil || len(files) != 1 {
		return nil, fmt.Errorf("apt left %d files of the kernel %s", len(files), kernel)
	}
	return append(debs, files[0]), nil
}

func lastLine(out []byte) string {
	s := strings.TrimSpace(string(out))
	return s[strings.LastIndexByte(s, '\n')+1:]
}
