// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// settle bounds the wait for an OCI runtime's own init to hand over to the program of the
// container. Start returns when init has been told to go on, not when it has: under runc its
// process is still runc for a moment. Nothing of the tenant runs in that time.
const settle = time.Second

// VerifyBinary compares the program that runs a started sandbox with the pinned digest.
// /proc/<pid>/exe is read through one open descriptor, so that replacing the file on disk
// changes nothing, and read again only when the process has executed another file within
// [settle]; the pid is asked of the engine again afterwards, so that a recycled pid is noticed.
// An error that matches ErrLaunch is a difference.
func (e *Engine) VerifyBinary(ctx context.Context, id string, pid int, digest string) error {
	var last unix.Stat_t
	var got string
	for deadline := time.Now().Add(settle); ; {
		changed, err := digestOfExe(pid, &last, &got)
		if err != nil {
			return err
		}
		if changed && got == digest {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: sandbox binary is %s, not %s", ErrLaunch, got, digest)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	again, err := e.pid(ctx, id)
	if err != nil {
		return err
	}
	if again != pid {
		return fmt.Errorf("%w: sandbox pid changed from %d to %d", ErrLaunch, pid, again)
	}
	return nil
}

// digestOfExe hashes the executed file of pid into got, unless it is the one of last.
func digestOfExe(pid int, last *unix.Stat_t, got *string) (changed bool, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false, fmt.Errorf("open sandbox binary: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, fmt.Errorf("inspect sandbox binary: %w", err)
	}
	if st.Dev == last.Dev && st.Ino == last.Ino {
		return false, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return false, fmt.Errorf("read sandbox binary: %w", err)
	}
	*last, *got = st, "sha256:"+hex.EncodeToString(h.Sum(nil))
	return true, nil
}
