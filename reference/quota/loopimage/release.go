// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// releasePoll is how often the kernel is asked again, while a release waits.
const releasePoll = 10 * time.Millisecond

// Release unmounts the workspace and waits, within ctx, until no loop device names its
// image: a successful umount alone proves nothing, since the device stays while a sandbox
// uses it. ErrBusy when one remains. Nothing mounted is a success.
func (s *Store) Release(ctx context.Context, id string) (Done, error) {
	p, _, unlock, err := s.lockWorkspace(ctx, id)
	if err != nil {
		return Done{}, err
	}
	defer unlock()
	found, err := release(ctx, p)
	return Done{Found: found}, err
}

func release(ctx context.Context, p paths) (found bool, err error) {
	var held []string
	for {
		_, mounted, err := mountRoot(p.mount)
		if err != nil {
			return found, err
		}
		why := "mounted"
		if mounted {
			found = true
			err = unix.Unmount(p.mount, unix.UMOUNT_NOFOLLOW)
			if err == nil {
				continue // mounts can be stacked
			}
			if err != unix.EBUSY {
				return found, fmt.Errorf("unmount workspace: %w", err)
			}
		} else {
			if held, err = holders(p.image); err != nil {
				return found, err
			}
			if len(held) == 0 {
				return found, nil
			}
			found = true
			why = strings.Join(held, ", ") + " names the image"
		}
		select {
		case <-ctx.Done():
			return found, fmt.Errorf("%w: still %s%s", ErrBusy, why, keepers(held))
		case <-time.After(releasePoll):
		}
	}
}

// Purge removes the image, the mount point and at last the record. ErrBusy while the
// workspace is mounted or a loop device names the image; nothing to remove is a success.
func (s *Store) Purge(ctx context.Context, id string) (Done, error) {
	p, _, unlock, err := s.lockWorkspace(ctx, id)
	if err != nil {
		return Done{}, err
	}
	defer unlock()
	_, mounted, err := mountRoot(p.mount)
	if err != nil {
		return Done{}, err
	}
	held, err := holders(p.image)
	if err != nil {
		return Done{}, err
	}
	if mounted || len(held) > 0 {
		return Done{}, fmt.Errorf("%w: mounted %t, devices %v", ErrBusy, mounted, held)
	}
	_, err = os.Lstat(p.record)
	found := err == nil
	err = errors.Join(removeImages(p), removeMountPoint(p.mount))
	if err == nil {
		err = durable.SyncDir(filepath.Dir(p.image))
	}
	if err == nil {
		err = errors.Join(durable.Remove(durable.Temporary(p.record)), durable.Remove(p.record))
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(p.record))
	}
	return Done{Found: found}, err
}

func removeMountPoint(path string) error {
	d, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open mount point: %w", err)
	}
	defer d.Close()
	if err := setImmutable(d, false); err != nil {
		return err
	}
	if err := unix.Rmdir(path); err != nil {
		return fmt.Errorf("remove mount point: %w", err)
	}
	return nil
}
