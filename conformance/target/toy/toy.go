// SPDX-License-Identifier: Apache-2.0

// Package toy is a deliberately simple runtime: host processes in a folder, as uid 65532.
//
// It exists to prove that the suite sees a target through package target alone. It owns a
// folder and its processes, needs root, and confines nothing: never run code with it that you
// would not run on the host.
package toy

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

const tenant = 65532

// Open returns a toy target that keeps its workspaces below dir. config is not used.
func Open(_ context.Context, _ json.RawMessage, dir string) (*target.Target, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the toy target starts processes as another user and needs root")
	}
	r := &box{dir: dir, live: map[string]*sandbox{}}
	return &target.Target{
		Parts:   []string{"observer.workspace-path", "runtime.concurrent"},
		Runtime: r, Observer: observer{r},
		Documents: func() (map[string][]byte, error) {
			return map[string][]byte{"launch-profile.json": []byte(`{"toy":1}`), "worker-config.json": []byte("{}")}, nil
		},
		Close: func() error {
			entries, err := os.ReadDir(dir)
			if err == nil && len(entries) > 0 {
				err = fmt.Errorf("%d workspaces were not purged", len(entries))
			}
			return err
		},
	}, nil
}

type box struct {
	dir  string
	mu   sync.Mutex
	live map[string]*sandbox
}

func (b *box) Describe(context.Context) (target.Description, error) {
	return target.Description{Driver: "toy", Mode: "qualification", Version: "1", WorkerID: "toy", Claims: []string{"exec", "files"}}, nil
}

func (b *box) workspace(id string) string {
	return filepath.Join(b.dir, hex.EncodeToString([]byte(id)))
}

func (b *box) Create(_ context.Context, spec target.Spec) (target.Sandbox, error) {
	dir := b.workspace(spec.WorkspaceID)
	// Every folder above must let the tenant through; the workspace itself is the tenant's.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make workspace: %w", err)
	}
	if err := errors.Join(os.Chmod(b.dir, 0o711), os.Chown(dir, tenant, tenant)); err != nil {
		return nil, fmt.Errorf("give workspace: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	id := make([]byte, 16)
	rand.Read(id)
	s := &sandbox{box: b, id: hex.EncodeToString(id), ws: spec.WorkspaceID, dir: dir, root: root}
	s.life, s.end = context.WithCancel(context.Background())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.live[s.id] = s
	return s, nil
}

func (b *box) Purge(_ context.Context, ws string) error { return os.RemoveAll(b.workspace(ws)) }

type sandbox struct {
	box         *box
	id, ws, dir string
	root        *os.Root
	life        context.Context // ends with the sandbox
	end         context.CancelFunc
	running     sync.WaitGroup // commands
}

func (s *sandbox) ID() string          { return s.id }
func (s *sandbox) WorkspaceID() string { return s.ws }

func (s *sandbox) State(context.Context) (string, error) {
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if s.box.live[s.id] == nil {
		return "gone", nil
	}
	return "ready", nil
}

func (s *sandbox) Dispose(context.Context) error {
	s.box.mu.Lock()
	was := s.box.live[s.id]
	delete(s.box.live, s.id)
	s.box.mu.Unlock()
	if was == nil {
		return nil
	}
	s.end()
	s.running.Wait()
	return s.root.Close()
}

// enter counts a command in, unless the sandbox is gone.
func (s *sandbox) enter() error {
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if s.box.live[s.id] == nil {
		return &target.Error{Code: "TOY_GONE", Kind: target.KindGone}
	}
	s.running.Add(1)
	return nil
}

func (s *sandbox) Exec(ctx context.Context, cmd target.Command) (target.Result, error) {
	if cmd.Timeout == 0 {
		cmd.Timeout = 30 * time.Second
	}
	if cmd.MaxOutput == 0 {
		cmd.MaxOutput = 1 << 20
	}
	if err := s.enter(); err != nil {
		return target.Result{}, err
	}
	defer s.running.Done()
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, cmd.Timeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	// The parent-death signal follows the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	c.Dir = filepath.Join(s.dir, cmd.Cwd)
	c.Env = []string{"HOME=" + s.dir, "PATH=/usr/bin:/bin", "LANG=C.UTF-8", "TMPDIR=/tmp"}
	c.Stdin = bytes.NewReader(cmd.Stdin)
	budget := &budget{left: cmd.MaxOutput}
	out, errOut := &bounded{budget: budget}, &bounded{budget: budget}
	c.Stdout, c.Stderr = out, errOut
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: tenant, Gid: tenant}}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	start := time.Now()
	err := c.Run()
	res := target.Result{
		Stdout: out.b.Bytes(), Stderr: errOut.b.Bytes(), Duration: time.Since(start), TimedOut: errors.Is(ctx.Err(), context.DeadlineExceeded),
		TruncatedStdout: out.dropped > 0, TruncatedStderr: errOut.dropped > 0, DroppedBytes: out.dropped + errOut.dropped,
	}
	if c.ProcessState == nil {
		return res, &target.Error{Code: "TOY_SPAWN", Cause: err}
	}
	if caller.Err() != nil {
		return res, caller.Err()
	}
	syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what the leader left in its group
	if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		res.Signal = ws.Signal().String()
	}
	res.ExitCode = c.ProcessState.ExitCode()
	return res, nil
}

// budget is what both streams may keep together.
type budget struct {
	mu   sync.Mutex
	left int64
}

type bounded struct {
	*budget
	b       bytes.Buffer
	dropped int64
}

func (w *bounded) Write(p []byte) (int, error) {
	w.mu.Lock()
	n := min(int64(len(p)), w.left)
	w.left -= n
	w.mu.Unlock()
	w.b.Write(p[:n])
	w.dropped += int64(len(p)) - n
	return len(p), nil
}

func (s *sandbox) Files() target.Files { return files{s} }

type files struct{ *sandbox }

func (f files) Read(_ context.Context, path string) ([]byte, error) {
	st, err := f.root.Lstat(path)
	if err == nil && !st.Mode().IsRegular() {
		return nil, &target.Error{Code: "TOY_PATH_UNSAFE", Kind: target.KindPathUnsafe}
	}
	if err != nil {
		return nil, coded(err)
	}
	b, err := f.root.ReadFile(path)
	return b, coded(err)
}

func (f files) Write(_ context.Context, path string, body []byte) error {
	if st, err := f.root.Lstat(path); err == nil && !st.Mode().IsRegular() {
		return &target.Error{Code: "TOY_PATH_UNSAFE", Kind: target.KindPathUnsafe}
	}
	if err := f.root.WriteFile(path, body, 0o755); err != nil {
		return coded(err)
	}
	return coded(f.root.Lchown(path, tenant, tenant))
}

func (f files) Stat(_ context.Context, path string) (target.Entry, error) {
	st, err := f.root.Lstat(path)
	if err != nil {
		return target.Entry{}, coded(err)
	}
	kind := "file"
	switch m := st.Mode(); {
	case m.IsDir():
		kind = "dir"
	case m&fs.ModeSymlink != 0:
		kind = "symlink"
	case !m.IsRegular():
		kind = "device"
	}
	return target.Entry{Name: st.Name(), Kind: kind, Size: st.Size()}, nil
}

func (f files) Remove(_ context.Context, path string) error { return coded(f.root.Remove(path)) }

func coded(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &target.Error{Code: "TOY_NOT_FOUND", Kind: target.KindNotFound, Cause: err}
	case errors.Is(err, fs.ErrClosed):
		return &target.Error{Code: "TOY_GONE", Kind: target.KindGone, Cause: err}
	default:
		return &target.Error{Code: "TOY_PATH_UNSAFE", Kind: target.KindPathUnsafe, Cause: err}
	}
}
