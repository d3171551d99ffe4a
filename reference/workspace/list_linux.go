// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxPage bounds the entries of one page, inclusive.
const MaxPage = 1000

// Page is one part of a listing. Cursor is empty on the last one.
type Page struct {
	Entries []Entry
	Cursor  string
}

// List returns up to limit (1 to 1,000) entries of a directory in the filesystem's order, from cursor on.
// The empty path is the workspace itself. An entry that cannot be looked at is returned
// with the kind the directory has for it, or Unknown, and zeros; one that vanished is left
// out. Entries made or removed while a listing goes on may or may not be seen; others are
// seen. A cursor belongs to one directory inode: for another it is ErrRequest.
func (t *Tree) List(ctx context.Context, path []byte, cursor string, limit int) (Page, error) {
	var page Page
	err := t.run(ctx, "list", path, func() error {
		name := "."
		if len(path) > 0 {
			if err := checkPath(path); err != nil {
				return err
			}
			name = string(path)
		}
		if limit < 1 || limit > MaxPage {
			return fmt.Errorf("%w: limit %d", ErrRequest, limit)
		}
		// First as a place, then the directory itself: no special file is ever opened.
		place, err := openBeneath(t.root, name, unix.O_PATH)
		if err != nil {
			return classed("open directory", err)
		}
		defer place.close()
		st, err := place.stat()
		if err != nil {
			return classed("open directory", err)
		}
		switch kindOf(st.Mode) {
		case Dir:
		case Symlink:
			return fmt.Errorf("open directory: %w: a symlink", ErrUnsafe)
		default:
			return fmt.Errorf("open directory: %w", ErrNotDir)
		}
		dir, err := t.reopen(place, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return classed("open directory", err)
		}
		defer dir.close()
		page, err = listDir(ctx, dir, st.Ino, cursor, limit)
		return err
	})
	return page, err
}

func listDir(ctx context.Context, dir handle, ino uint64, cursor string, limit int) (Page, error) {
	offset, err := parseCursor(cursor, ino)
	if err != nil {
		return Page{}, err
	}
	if offset != 0 {
		if _, err := unix.Seek(int(dir), offset, unix.SEEK_SET); err != nil {
			return Page{}, fmt.Errorf("%w: cursor: %w", ErrRequest, err)
		}
	}
	page := Page{Entries: make([]Entry, 0, min(limit, 64))}
	buf := make([]byte, 32<<10)
	for {
		if err := ctx.Err(); err != nil {
			return Page{}, err
		}
		n, err := unix.Getdents(int(dir), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Page{}, classed("read directory", err)
		}
		if n == 0 {
			return page, nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			d := parseDirent(rest)
			rest = rest[d.size:]
			if d.name == "." || d.name == ".." {
				offset = d.next
				continue
			}
			// One more than asked for is there, so the page ends before it.
			if len(page.Entries) == limit {
				page.Cursor = formatCursor(ino, offset)
				return page, nil
			}
			offset = d.next
			st, err := lstatAt(dir, d.name)
			switch {
			case err == nil:
				page.Entries = append(page.Entries, entry(d.name, st))
			case err == unix.ENOENT:
			default:
				page.Entries = append(page.Entries, Entry{Name: []byte(d.name), Kind: kindOf(uint32(d.kind) << 12)})
			}
		}
	}
}

type dirent struct {
	name string
	next int64 // where the entry after it begins
	kind uint8 // DT_*, which is the S_IFMT value shifted by 12; 0 when unknown
	size int
}

// parseDirent reads one struct linux_dirent64 of getdents64(2): ino u64, off s64,
// reclen u16, type u8, name with NUL. The kernel wrote it.
func parseDirent(b []byte) dirent {
	const head = int(unsafe.Offsetof(unix.Dirent{}.Name))
	size := int(binary.NativeEndian.Uint16(b[16:]))
	name := b[head:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return dirent{name: string(name), next: int64(binary.NativeEndian.Uint64(b[8:])), kind: b[18], size: size}
}

// A cursor is base64url of the directory's inode and an offset, each a big-endian u64. It is not a
// secret and not trusted: the offset only selects where in that directory to go on.
func formatCursor(ino uint64, offset int64) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], ino)
	binary.BigEndian.PutUint64(b[8:], uint64(offset))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func parseCursor(cursor string, ino uint64) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) != 16 || base64.RawURLEncoding.EncodeToString(b) != cursor {
		return 0, fmt.Errorf("%w: cursor", ErrRequest)
	}
	offset := int64(binary.BigEndian.Uint64(b[8:]))
	if binary.BigEndian.Uint64(b) != ino || offset < 0 {
		return 0, fmt.Errorf("%w: cursor of another directory", ErrRequest)
	}
	return offset, nil
}
