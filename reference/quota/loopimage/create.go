// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// hostFiles is how many inodes one workspace takes of the host: record, lock, image, mount point, and a temporary.
const hostFiles = 5

// features is the complete list: nothing comes from a mke2fs.conf. Left out on purpose:
// resize_inode (grown never), 64bit (larger descriptors), orphan_file (an inode more).
const features = "none,has_journal,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// Reserve is what must stay free for the host: 10 % of the filesystem or these, whichever is more.
type Reserve struct{ Bytes, Inodes int64 }

// Create makes the image of a workspace, or finds it complete. Half-made ones are made
// again. ErrReserve comes before anything exists; ErrMismatch when other bounds were given
// at first; ErrCorrupt when an image that was complete is gone.
func (s *Store) Create(ctx context.Context, id string, bytes, inodes int64, reserve Reserve) (Created, error) {
	g, err := planGeometry(bytes, inodes)
	if err != nil {
		return Created{}, err
	}
	p, lock, unlock, err := s.lockWorkspace(ctx, id)
	if err != nil {
		return Created{}, err
	}
	defer unlock()

	rec, err := readRecord(p)
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return Created{}, err
	case rec.Bytes != bytes || rec.Inodes != inodes:
		if rec.Ready {
			return Created{}, fmt.Errorf("%w: %d bytes and %d inodes", ErrMismatch, rec.Bytes, rec.Inodes)
		}
		// Never complete, so nothing is in it: start again with the new bounds.
		if err := removeImages(p); err != nil {
			return Created{}, err
		}
	default:
		st, err := checkImage(p, g)
		if err == nil {
			if !rec.Ready { // the rename was the last step
				rec.Ready = true
				if err := writeRecord(p, rec); err != nil {
					return Created{}, err
				}
			}
			return created(g, st, false), nil
		}
		if rec.Ready || !errors.Is(err, fs.ErrNotExist) {
			return Created{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}

	rec = record{WorkspaceID: id, Bytes: bytes, Inodes: inodes}
	if err := s.allocate(ctx, p, rec, g, reserve); err != nil {
		return Created{}, err
	}
	if err := s.format(ctx, lock, p, g); err != nil {
		return Created{}, err
	}
	if err := os.Rename(p.tmp, p.image); err != nil {
		return Created{}, fmt.Errorf("name image: %w", err)
	}
	if err := durable.SyncDir(filepath.Dir(p.image)); err != nil {
		return Created{}, err
	}
	rec.Ready = true
	if err := writeRecord(p, rec); err != nil {
		return Created{}, err
	}
	st, err := checkImage(p, g)
	if err != nil {
		return Created{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return created(g, st, true), nil
}

func created(g geometry, st *syscall.Stat_t, isNew bool) Created {
	return Created{New: isNew, Bytes: g.bound * blockSize, Inodes: g.inodes(), ImageBytes: st.Size, ImageBlocks: st.Blocks}
}

// allocate checks the reserve, records the intent and takes the space, all under the
// directory's lock: two creates cannot both be promised the same space.
func (s *Store) allocate(ctx context.Context, p paths, rec record, g geometry, reserve Reserve) error {
	lock, err := s.lockDir(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Remove(p.tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove half-made image: %w", err)
	}
	if err := s.checkReserve(g.imageBytes(), reserve); err != nil {
		return err
	}
	if err := writeRecord(p, rec); err != nil {
		return err
	}
	f, err := os.OpenFile(p.tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, g.imageBytes())
	if err == nil {
		return nil
	}
	_ = os.Remove(p.tmp) // not later: the space must not stay taken by a failed create
	if err == unix.ENOSPC || err == unix.EDQUOT {
		return errors.Join(fmt.Errorf("%w: %w", ErrReserve, err), durable.Remove(p.record))
	}
	return fmt.Errorf("preallocate image: %w", err)
}

func (s *Store) checkReserve(imageBytes int64, r Reserve) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return fmt.Errorf("ask host filesystem: %w", err)
	}
	free, keep := int64(st.Bavail)*st.Frsize, max(int64(st.Blocks)*st.Frsize/10, r.Bytes)
	if free-imageBytes < keep {
		return fmt.Errorf("%w: %d bytes free, the image needs %d and %d stay reserved", ErrReserve, free, imageBytes, keep)
	}
	if st.Files == 0 {
		return nil // no fixed number of inodes on this host filesystem (btrfs)
	}
	freeFiles, keepFiles := int64(st.Ffree), max(int64(st.Files)/10, r.Inodes)
	if freeFiles-hostFiles < keepFiles {
		return fmt.Errorf("%w: %d inodes free and %d stay reserved", ErrReserve, freeFiles, keepFiles)
	}
	return nil
}

// format makes the filesystem in the temporary image and proves it clean.
func (s *Store) format(ctx context.Context, lock *os.File, p paths, g geometry) error {
	step := func(what, stdin, tool string, allowed int, args ...string) error {
		code, out, err := s.run(ctx, lock, stdin, tool, args...)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if code > allowed {
			return fmt.Errorf("%s: exit code %d: %s", what, code, out)
		}
		return nil
	}
	// nodiscard keeps the preallocated blocks; no lazy work is left for the kernel to do later.
	err := step("make filesystem", "", s.tools.Mkfs, 0, "-q", "-F", "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize),
		"-N", strconv.FormatInt(g.totalInodes, 10), "-m", "0", "-J", "size="+strconv.FormatInt(g.journalMiB, 10),
		"-e", "remount-ro", "-O", features,
		"-E", fmt.Sprintf("nodiscard,lazy_itable_init=0,lazy_journal_init=0,root_owner=%d:%d", Tenant, Tenant),
		p.tmp, strconv.FormatInt(g.blocks, 10))
	if err != nil {
		return err
	}
	if g.firstInode > reservedInodes+1 {
		// The kernel and e2fsck take inodes below s_first_ino for reserved. lost+found has the
		// first ordinary one, so it goes before; e2fsck then marks the reserved ones in two passes.
		cmds := fmt.Sprintf("rmdir lost+found\nset_super_value first_ino %d\n", g.firstInode)
		if err := step("reserve inodes", cmds, s.tools.Debugfs, 0, "-w", "-f", "-", p.tmp); err != nil {
			return err
		}
		for range 2 {
			if err := step("mark reserved inodes", "", s.tools.Fsck, 1, "-f", "-y", p.tmp); err != nil {
				return err
			}
		}
	}
	if err := step("prove filesystem clean", "", s.tools.Fsck, 0, "-f", "-n", p.tmp); err != nil {
		return err
	}
	f, err := os.OpenFile(p.tmp, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("sync image: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync image: %w", err)
	}
	return nil
}

// checkImage proves that the image under its final name is ours, whole and not sparse.
func checkImage(p paths, g geometry) (*syscall.Stat_t, error) {
	fi, err := os.Lstat(p.image)
	if err != nil {
		return nil, fmt.Errorf("check image: %w", err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	switch {
	case fi.Mode() != 0o600 || st.Uid != 0 || st.Nlink != 1:
		return nil, errors.New("check image: not a regular file of root with mode 0600 and one name")
	case st.Size != g.imageBytes():
		return nil, fmt.Errorf("check image: %d bytes instead of %d", st.Size, g.imageBytes())
	case st.Blocks*512 < st.Size:
		return nil, fmt.Errorf("check image: sparse, %d of %d bytes allocated", st.Blocks*512, st.Size)
	}
	return st, nil
}

func removeImages(p paths) error {
	return errors.Join(durable.Remove(p.tmp), durable.Remove(p.image))
}
