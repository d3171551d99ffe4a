// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// MissingError says what this machine lacks and how to get it.
type MissingError struct{ What, Remedy string }

func (e *MissingError) Error() string { return e.What }

// packages extracts distribution packages into <cache>/packages/<name>_<version>.
// It installs nothing and, once a package is there, needs no network.
type packages struct {
	dir string    // <cache>/packages
	out io.Writer // announcements

	release string            // ID and VERSION_ID of os-release, plus the architecture
	index   map[string]string // name -> folder name, of this release
	updated bool              // apt-get update has run
}

// indexFile maps releases to the packages that were extracted for them.
const indexFile = "index.json"

// noFolder in the index says that this release has no such package.
const noFolder = "none"

func openPackages(dir string, out io.Writer) (*packages, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make package folder: %w", err)
	}
	p := &packages{dir: dir, out: out, index: map[string]string{}}
	arch, err := exec.Command("dpkg", "--print-architecture").Output()
	if err != nil {
		return nil, fmt.Errorf("ask dpkg for the architecture: %w", err)
	}
	p.release = osRelease() + "/" + strings.TrimSpace(string(arch))
	body, err := os.ReadFile(filepath.Join(dir, indexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read package index: %w", err)
	}
	all := map[string]map[string]string{}
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("read package index: %w", err)
	}
	if m := all[p.release]; m != nil {
		p.index = m
	}
	return p, nil
}

func osRelease() string {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	var id, version string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, value, _ := strings.Cut(sc.Text(), "=")
		switch value = strings.Trim(value, `"'`); name {
		case "ID":
			id = value
		case "VERSION_ID":
			version = value
		}
	}
	return id + "-" + version
}

func (p *packages) save() error {
	body, err := json.MarshalIndent(map[string]map[string]string{p.release: p.index}, "", "  ")
	if err != nil {
		return fmt.Errorf("write package index: %w", err)
	}
	return writeAtomic(filepath.Join(p.dir, indexFile), body, 0o644)
}

// errNoPackage says that the distribution has no package of that name.
var errNoPackage = errors.New("the distribution has no such package")

// get returns the folder with the files of a package, fetching it when it is not there yet.
func (p *packages) get(ctx context.Context, name string) (string, error) {
	if folder := p.index[name]; folder == noFolder {
		return "", fmt.Errorf("find package %s: %w", name, errNoPackage)
	} else if folder != "" {
		dir := filepath.Join(p.dir, folder)
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
	}
	version, err := p.candidate(ctx, name)
	if errors.Is(err, errNoPackage) {
		p.index[name] = noFolder // remembered, or each later run would refresh the lists over the network
		return "", errors.Join(err, p.save())
	}
	if err != nil {
		return "", err
	}
	folder := folderName(name, version)
	dir := filepath.Join(p.dir, folder)
	if _, err := os.Stat(dir); err != nil {
		fmt.Fprintf(p.out, "lab: extracting package %s %s into the cache (nothing is installed)\n", name, version)
		if err := p.fetch(ctx, name, version, dir); err != nil {
			return "", err
		}
	}
	p.index[name] = folder
	return dir, p.save()
}

// folderName is where a version of a package lies, below the package folder.
func folderName(name, version string) string {
	return name + "_" + strings.NewReplacer(":", "-", "/", "-").Replace(version)
}

func (p *packages) candidate(ctx context.Context, name string) (string, error) {
	for {
		out, err := exec.CommandContext(ctx, "apt-cache", "policy", name).Output()
		if err != nil {
			return "", fmt.Errorf("ask apt for package %s: %w", name, err)
		}
		for line := range strings.Lines(string(out)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Candidate: "); ok && v != "(none)" {
				return v, nil
			}
		}
		if p.updated {
			return "", fmt.Errorf("find package %s: %w", name, errNoPackage)
		}
		if err := p.update(ctx); err != nil {
			return "", err
		}
	}
}

func (p *packages) update(ctx context.Context) error {
	p.updated = true
	fmt.Fprintln(p.out, "lab: refreshing the package lists (apt-get update), since they do not name what is needed or are out of date")
	if out, err := exec.CommandContext(ctx, "apt-get", "-qq", "update").CombinedOutput(); err != nil {
		return &MissingError{
			What:   "the package lists cannot be refreshed: " + lastLine(out),
			Remedy: "make `apt-get update` work (network, sources), then run this again",
		}
	}
	return nil
}

// fetch downloads one package, which apt checks against its signed lists, and extracts it.
func (p *packages) fetch(ctx context.Context, name, version, dir string) error {
	tmp, err := os.MkdirTemp(p.dir, ".fetch-")
	if err != nil {
		return fmt.Errorf("fetch package %s: %w", name, err)
	}
	defer os.RemoveAll(tmp)
	download := func() ([]byte, error) {
		// As root apt drops to a user who cannot write here, and warns; it is told to stay.
		cmd := exec.CommandContext(ctx, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name+"="+version)
		cmd.Dir = tmp
		return cmd.CombinedOutput()
	}
	out, err := download()
	if err != nil && !p.updated { // old lists name files that the archive no longer has
		if uerr := p.update(ctx); uerr != nil {
			return uerr
		}
		out, err = download()
	}
	if err != nil {
		return &MissingError{
			What:   fmt.Sprintf("package %s %s cannot be downloaded: %s", name, version, lastLine(out)),
			Remedy: "make `apt-get download " + name + "` work, then run this again",
		}
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("fetch package %s: apt left %d files", name, len(debs))
	}
	return p.extract(ctx, name, debs[0], dir)
}

// extract unpacks a package file beside its final place, and then moves it there.
func (p *packages) extract(ctx context.Context, name, deb, dir string) error {
	tree := filepath.Join(filepath.Dir(deb), "tree")
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, tree).CombinedOutput(); err != nil {
		return fmt.Errorf("extract package %s: %w: %s", name, err, lastLine(out))
	}
	depends, err := exec.CommandContext(ctx, "dpkg-deb", "-f", deb, "Depends").Output()
	if err != nil {
		return fmt.Errorf("read dependencies of package %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(tree, dependsFile), depends, 0o644); err != nil {
		return fmt.Errorf("extract package %s: %w", name, err)
	}
	if err := os.Rename(tree, dir); err != nil {
		return fmt.Errorf("extract package %s: %w", name, err)
	}
	return nil
}

const dependsFile = ".depends"

// libraries returns the folders that hold shared libraries which binary needs
// and the host has not, taken from the package's dependencies, breadth first.
func (p *packages) libraries(ctx context.Context, binary, pkgDir string) ([]string, error) {
	missing, err := missingLibraries(ctx, binary, nil)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	var dirs []string
	seen := map[string]bool{}
	for queue := []string{pkgDir}; len(queue) > 0 && len(missing) > 0; queue = queue[1:] {
		body, err := os.ReadFile(filepath.Join(queue[0], dependsFile))
		if err != nil {
			return nil, fmt.Errorf("read dependencies: %w", err)
		}
		for dep := range strings.SplitSeq(string(body), ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(dep), " ")
			name, _, _ = strings.Cut(name, ":")
			if !strings.HasPrefix(name, "lib") || name == "libc6" || seen[name] {
				continue
			}
			seen[name] = true
			dir, err := p.get(ctx, name)
			if errors.Is(err, errNoPackage) {
				continue // a virtual package; the check below says what stays missing
			}
			if err != nil {
				return nil, err
			}
			queue = append(queue, dir)
			for _, pattern := range []string{"lib/*/*.so*", "usr/lib/*/*.so*", "lib/*.so*", "usr/lib/*.so*"} {
				files, _ := filepath.Glob(filepath.Join(dir, pattern)) // constant, well-formed patterns
				for _, f := range files {
					if d := filepath.Dir(f); !slices.Contains(dirs, d) {
						dirs = append(dirs, d)
					}
				}
			}
			if missing, err = missingLibraries(ctx, binary, dirs); err != nil {
				return nil, err
			}
		}
	}
	if len(missing) > 0 {
		return nil, &MissingError{
			What:   fmt.Sprintf("%s needs shared libraries that are not here: %s", filepath.Base(binary), strings.Join(missing, ", ")),
			Remedy: "install the packages that hold them",
		}
	}
	return dirs, nil
}

// missingLibraries asks the dynamic loader which libraries of binary it cannot find.
// The loader's own trace mode is used, as ldd(1) does, since only it knows its search path; its
// option --list stops at the first library that is missing. The program does not run.
func missingLibraries(ctx context.Context, binary string, extra []string) ([]string, error) {
	f, err := elf.Open(binary)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", binary, err)
	}
	defer f.Close()
	interp := ""
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_INTERP {
			body, err := io.ReadAll(prog.Open())
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", binary, err)
			}
			interp = strings.TrimRight(string(body), "\x00")
		}
	}
	if interp == "" {
		return nil, nil // static
	}
	cmd := exec.CommandContext(ctx, interp, binary)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(extra, ":"), "LD_TRACE_LOADED_OBJECTS=1")
	out, runErr := cmd.CombinedOutput()
	var missing []string
	for line := range strings.Lines(string(out)) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if ok && strings.HasPrefix(rest, "not found") && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if runErr != nil && len(missing) == 0 {
		return nil, fmt.Errorf("list libraries of %s: %w: %s", binary, runErr, lastLine(out))
	}
	return missing, nil
}

func lastLine(out []byte) string {
	s := strings.TrimSpace(string(out))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// writeAtomic writes a file that is either whole or not there.
func writeAtomic(path string, body []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(body)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
