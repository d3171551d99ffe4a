// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// VerifyBinary compares the program that runs a started sandbox with the pinned digest.
// /proc/<pid>/exe is opened once and read through that descriptor, so that replacing the
// file on disk changes nothing; the pid is asked of the engine again afterwards, so that a
// recycled pid is noticed. An error that matches ErrLaunch is a difference.
func (e *Engine) VerifyBinary(ctx context.Context, id string, pid int, digest string) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return fmt.Errorf("open sandbox binary: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("read sandbox binary: %w", err)
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != digest {
		return fmt.Errorf("%w: sandbox binary is %s, not %s", ErrLaunch, got, digest)
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
