// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"
)

// Names that hold in every lab.
const (
	RuntimeRunsc = "runsc"       // built from the pinned module, systrap
	RuntimeAlt   = "runsc-deb"   // the distribution's package, ptrace, --network=none; may be absent
	RuntimeDeb13 = "runsc-deb13" // Debian 13's package, systrap, --network=none; may be absent
	RuntimeRunc  = "runc"        // the engine's own default
	NetworkName  = "hallmark-lab"
	Bubblewrap   = "bwrap" // no runtime of the engine: a program of its own; may be absent
)

// ErrNotRunning says that no lab runs on the cache.
var ErrNotRunning = errors.New("no lab is running")

// Runtime is one registered OCI runtime.
type Runtime struct {
	Name    string   `json:"name"`    // as HostConfig.Runtime wants it
	Path    string   `json:"path"`    // absolute; content-addressed except for runc
	Digest  string   `json:"digest"`  // sha256:<hex> of the file at Path
	Args    []string `json:"args"`    // runtimeArgs of the registration
	Version string   `json:"version"` // as "--version" says it
}

// Binary is one executable that the lab runs.
type Binary struct {
	Path    string `json:"path"`
	Digest  string `json:"digest"`
	Package string `json:"package,omitempty"` // name_version of the package it was extracted from; empty when it was installed already
	// Libraries are folders for LD_LIBRARY_PATH with what the host lacks of its shared libraries.
	Libraries []string `json:"libraries,omitempty"`
}

// Lab describes one running lab. It is also the content of <cache>/lab.json.
type Lab struct {
	ID           string             `json:"id"`           // from the cache folder's path; the same for each lab on it
	Cache        string             `json:"cache"`        // the cache folder
	Socket       string             `json:"socket"`       // engine API, a path without a scheme
	RunDir       string             `json:"runDir"`       // socket, pid file, exec root; short, since unix socket paths end at 107 bytes
	DataRoot     string             `json:"dataRoot"`     // the engine's data root
	WorkDir      string             `json:"workDir"`      // for workers' state, workspaces and loop images: Up and Down sweep it
	CgroupParent string             `json:"cgroupParent"` // absolute in each hierarchy; workers' own cgroups belong below it
	CgroupMode   string             `json:"cgroupMode"`   // "v1" or "v2"
	NetNS        string             `json:"netNS"`        // path of the lab's network namespace
	NetNSInode   uint64             `json:"netNSInode"`
	Network      string             `json:"network"` // the one user-defined bridge network
	EnginePid    int                `json:"enginePid"`
	EngineStart  uint64             `json:"engineStart"` // start time in clock ticks, /proc/<pid>/stat field 22
	Engine       Binary             `json:"engine"`
	Containerd   Binary             `json:"containerd"`
	Shim         Binary             `json:"shim"`
	Busybox      Binary             `json:"busybox"` // static, for fixtures/image
	Bubblewrap   Binary             `json:"bubblewrap"`
	Runtimes     map[string]Runtime `json:"runtimes"`
	Missing      map[string]string  `json:"missing,omitempty"` // runtime name, or bwrap -> why it is not there
	OwnerPid     int                `json:"ownerPid"`          // the process that it is bound to (Options.Bound), 0 for none
	OwnerStart   uint64             `json:"ownerStart"`

	// Fresh says that this call of Up started it, so that the caller takes it down.
	Fresh bool `json:"-"`
}

// CacheDir returns the cache folder: $HALLMARK_CACHE, or .cache in the
// repository that holds the working directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("HALLMARK_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := RepoDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, ".cache"), nil
}

// RepoDir returns the nearest folder at or above the working directory that
// holds ci/runsc/go.mod, which is needed to build runsc.
func RepoDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "ci", "runsc", "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", &MissingError{What: "no clone of the repository (ci/runsc/go.mod) at or above the working directory", Remedy: "run this inside of one"}
		}
		dir = up
	}
}

// Find returns the lab that runs on [CacheDir], after checking that its engine
// is the recorded process and answers. Without one it returns [ErrNotRunning].
func Find() (*Lab, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return find(ctx, cache)
}

func find(ctx context.Context, cache string) (*Lab, error) {
	body, err := os.ReadFile(recordPath(cache))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotRunning
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, notOurs("its record cannot be read")
	}
	if err != nil {
		return nil, fmt.Errorf("read lab record: %w", err)
	}
	l := new(Lab)
	if err := json.Unmarshal(body, l); err != nil {
		return nil, fmt.Errorf("read lab record: %w", err)
	}
	if start, err := startTime(l.EnginePid); err != nil || start != l.EngineStart {
		return nil, fmt.Errorf("%w: its engine (process %d) is gone", ErrNotRunning, l.EnginePid)
	}
	if err := unix.Access(l.Socket, unix.W_OK); errors.Is(err, fs.ErrPermission) {
		return nil, notOurs(fmt.Sprintf("its engine (process %d) lives, and does not answer this user", l.EnginePid))
	}
	cli, err := l.Client()
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	if _, err := cli.Ping(ctx); err != nil {
		return nil, fmt.Errorf("%w: its engine does not answer: %w", ErrNotRunning, err)
	}
	return l, nil
}

// notOurs says that there may be a lab that this user cannot look at.
func notOurs(why string) error {
	return &MissingError{What: "the lab belongs to root: " + why, Remedy: "run this as root, for instance with sudo"}
}

// Client returns a new engine client; the caller closes it.
func (l *Lab) Client() (*client.Client, error) {
	cli, err := client.NewClientWithOpts(client.WithHost("unix://"+l.Socket), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("make engine client: %w", err)
	}
	return cli, nil
}

// orphan says whether the lab was bound to a process that is gone.
func (l *Lab) orphan() bool {
	if l.OwnerPid == 0 {
		return false
	}
	start, err := startTime(l.OwnerPid)
	return err != nil || start != l.OwnerStart
}

func recordPath(cache string) string { return filepath.Join(cache, "lab.json") }
