// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// gvisorModule is the module that ci/runsc pins.
const gvisorModule = "gvisor.dev/gvisor"

// buildRecord is <cache>/runtimes/runsc.json: which sources and compiler gave which file.
type buildRecord struct {
	Module string `json:"module"` // module@version
	Go     string `json:"go"`     // "go version" of the toolchain used, with os/arch
	Digest string `json:"digest"`
}

// buildRunsc returns the content-addressed runsc of the pinned module, building
// it when the cache has none for this version and toolchain (about 60 s on two
// cores). CGO is off: with it the sandbox start fails ("error executing umounter").
func buildRunsc(ctx context.Context, repo, runtimes string, out io.Writer) (Binary, error) {
	module := filepath.Join(repo, "ci", "runsc")
	version, err := goCommand(ctx, module, "list", "-m", "-f", "{{.Version}}", gvisorModule).Output()
	if err != nil {
		return Binary{}, commandError("read pinned version of gVisor", err)
	}
	toolchain, err := goCommand(ctx, module, "version").Output()
	if err != nil {
		return Binary{}, commandError("read version of the Go toolchain", err)
	}
	want := buildRecord{Module: gvisorModule + "@" + strings.TrimSpace(string(version)), Go: strings.TrimSpace(string(toolchain))}
	recordFile := filepath.Join(runtimes, "runsc.json")
	if b, ok := cachedBuild(recordFile, runtimes, want); ok {
		return b, nil
	}
	fmt.Fprintf(out, "lab: building runsc from %s into the cache (a minute or two, once)\n", want.Module)
	begin := time.Now()
	tmp, err := os.MkdirTemp(runtimes, ".build-")
	if err != nil {
		return Binary{}, fmt.Errorf("build runsc: %w", err)
	}
	defer os.RemoveAll(tmp)
	file := filepath.Join(tmp, "runsc")
	stamp := "-X " + gvisorModule + "/runsc/version.version=" + strings.TrimSpace(string(version))
	cmd := goCommand(ctx, module, "build", "-trimpath", "-buildvcs=false", "-ldflags", stamp, "-o", file, gvisorModule+"/runsc")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return Binary{}, &MissingError{
			What:   "runsc cannot be built: " + lastLine(msg),
			Remedy: "let `go mod download` in ci/runsc reach a module proxy once; later runs need none",
		}
	}
	b, err := addressed(file, runtimes, "runsc")
	if err != nil {
		return Binary{}, err
	}
	want.Digest = b.Digest
	body, err := json.MarshalIndent(want, "", "  ")
	if err != nil {
		return Binary{}, fmt.Errorf("write build record: %w", err)
	}
	fmt.Fprintf(out, "lab: built runsc in %s\n", time.Since(begin).Round(time.Second))
	return b, writeAtomic(recordFile, body, 0o644)
}

func cachedBuild(recordFile, runtimes string, want buildRecord) (Binary, bool) {
	body, err := os.ReadFile(recordFile)
	if err != nil {
		return Binary{}, false
	}
	var have buildRecord
	if json.Unmarshal(body, &have) != nil {
		return Binary{}, false
	}
	path := addressedPath(runtimes, have.Digest, "runsc")
	digest, err := FileDigest(path)
	if err != nil || digest != have.Digest || have.Module != want.Module || have.Go != want.Go {
		return Binary{}, false
	}
	return Binary{Path: path, Digest: digest}, true
}

// goCommand runs the go command in dir, away from a workspace and from flags that would change the result.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	return cmd
}

func commandError(step string, err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%s: %w: %s", step, err, lastLine(exit.Stderr))
	}
	return fmt.Errorf("%s: %w", step, err)
}

func addressedPath(runtimes, digest, name string) string {
	return filepath.Join(runtimes, strings.Replace(digest, ":", "-", 1), name)
}

// addressed copies a program to <runtimes>/sha256-<hex>/<name>, mode 0555, so
// that a registration names the bytes that will run.
func addressed(file, runtimes, name string) (Binary, error) {
	digest, err := FileDigest(file)
	if err != nil {
		return Binary{}, err
	}
	path := addressedPath(runtimes, digest, name)
	if have, err := FileDigest(path); err == nil && have == digest {
		return Binary{Path: path, Digest: digest}, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Binary{}, err
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return Binary{}, fmt.Errorf("copy %s: %w", name, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return Binary{}, fmt.Errorf("copy %s: %w", name, err)
	}
	if err := writeAtomic(path, body, 0o555); err != nil {
		return Binary{}, err
	}
	return Binary{Path: path, Digest: digest}, nil
}

// FileDigest is "sha256:" and 64 hex digits of a file.
func FileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest %s: %w", path, err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// runtimeVersion returns what a runtime calls itself, its first line's last word.
func runtimeVersion(ctx context.Context, path string, env []string) string {
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil {
		return "unknown" // the digest is its identity
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return first[strings.LastIndexByte(first, ' ')+1:]
}
