// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"
)

// answerLimit bounds what is read from the helper, in bytes: ids of at most 128 bytes each.
const answerLimit = 16 << 20

// helper is hallmark-quota for one backend and one directory.
type helper struct{ path, digest, backend, dir string }

// call runs one verb of the helper and decodes its answer into out.
func (h helper) call(ctx context.Context, out any, verb string, args ...string) error {
	exe, err := h.pinned()
	if err != nil {
		return err
	}
	defer exe.Close()
	// The child resolves the path among its own descriptors, so what was hashed is what
	// runs: a path that was exchanged meanwhile does not matter.
	c := exec.CommandContext(ctx, "/proc/self/fd/"+strconv.Itoa(int(exe.Fd())), append([]string{h.backend, verb, h.dir}, args...)...)
	c.Args[0] = "hallmark-quota"
	c.Dir, c.Env = "/", []string{}
	// The helper ends with this process, or it could still mount what the next process believes
	// unmounted. Pdeathsig follows the thread that forked (prctl(2)), and threads end here, see
	// reference/workspace: this goroutine keeps its thread until the helper has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	// The whole session: a tool of the helper must not outlive it.
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 2 * time.Second
	stdout, stderr := &bounded{limit: answerLimit}, &bounded{limit: 8 << 10}
	c.Stdout, c.Stderr = stdout, stderr
	err = c.Run()
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("quota helper: %w", ctx.Err())
	}
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		return fmt.Errorf("quota helper: %w", err)
	}
	if stdout.Len() > 0 {
		d := json.NewDecoder(stdout)
		d.DisallowUnknownFields()
		if derr := d.Decode(out); derr != nil {
			return fmt.Errorf("quota helper's answer: %w", derr)
		}
	} else if err == nil {
		return errors.New("quota helper gave no answer")
	}
	if err != nil {
		message := strings.TrimPrefix(strings.TrimSpace(stderr.String()), "hallmark-quota: ")
		return exitcode.Error(exit.ExitCode(), message)
	}
	return nil
}

// pinned opens the helper and compares its digest with the configured one.
func (h helper) pinned() (*os.File, error) {
	f, err := os.OpenFile(h.path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHelper, err)
	}
	fi, err := f.Stat()
	if err == nil {
		if st := fi.Sys().(*syscall.Stat_t); !fi.Mode().IsRegular() || st.Uid != 0 || fi.Mode().Perm()&0o022 != 0 {
			err = errors.New("it must be a regular file that only root can write")
		}
	}
	sum := sha256.New()
	if err == nil {
		_, err = io.Copy(sum, f)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); err == nil && got != h.digest {
		err = fmt.Errorf("%s has digest %s", h.path, got)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: %w", ErrHelper, err)
	}
	return f, nil
}

// bounded keeps at most limit bytes and drops the rest.
type bounded struct {
	bytes.Buffer
	limit int
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.limit - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
