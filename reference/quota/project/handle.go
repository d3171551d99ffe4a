// SPDX-License-Identifier: Apache-2.0

package project

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File handles of ext4 and XFS, see open_by_handle_at(2): an inode number and its generation, each
// in the byte order of the machine. FILEID_INO32_GEN of linux/exportfs.h has u32 and u32; XFS has a
// form of its own with u64 and u32, for mounts whose inode numbers may need it (fs/xfs/xfs_export.h).
// A number that is used again has another generation: what a handle opens is the inode that it was
// made of, wherever its names are, or nothing (ESTALE).
const (
	fileidIno32Gen = 0x01
	fileidIno64Gen = 0x81
)

// handle is struct file_handle of linux/fs.h with room for both forms.
type handle struct {
	bytes uint32
	form  int32
	id    [12]byte
}

// makeHandle returns the handle of an inode of a mount whose handles have that form.
func makeHandle(form int32, ino uint64, generation uint32) handle {
	h := handle{bytes: 8, form: form}
	if form == fileidIno64Gen {
		h.bytes = 12
		binary.NativeEndian.PutUint64(h.id[:], ino)
		binary.NativeEndian.PutUint32(h.id[8:], generation)
		return h
	}
	binary.NativeEndian.PutUint32(h.id[:], uint32(ino))
	binary.NativeEndian.PutUint32(h.id[4:], generation)
	return h
}

// read is the inverse of makeHandle; ErrTool for other forms.
func (h *handle) read() (ino uint64, generation uint32, err error) {
	switch {
	case h.form == fileidIno32Gen && h.bytes == 8:
		return uint64(binary.NativeEndian.Uint32(h.id[:])), binary.NativeEndian.Uint32(h.id[4:]), nil
	case h.form == fileidIno64Gen && h.bytes == 12:
		return binary.NativeEndian.Uint64(h.id[:]), binary.NativeEndian.Uint32(h.id[8:]), nil
	}
	return 0, 0, fmt.Errorf("%w: file handles of type %#x with %d bytes are not known", ErrTool, h.form, h.bytes)
}

// handleAt is name_to_handle_at(2): links are not followed. mount is the id of the mount that the
// name is on.
func handleAt(dir int, name *byte, flags int) (h handle, mount int32, err error) {
	for {
		h.bytes = uint32(len(h.id))
		_, _, e := unix.Syscall6(unix.SYS_NAME_TO_HANDLE_AT, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&mount)), uintptr(flags), 0)
		switch e {
		case 0:
			return h, mount, nil
		case unix.EINTR:
		case unix.EOVERFLOW:
			return h, mount, fmt.Errorf("%w: file handles of %d bytes are not known", ErrTool, h.bytes)
		default:
			return h, mount, e
		}
	}
}

// open is open_by_handle_at(2), which needs CAP_DAC_READ_SEARCH. mount is a descriptor on the mount,
// and no O_PATH one.
func (h handle) open(mount, flags int) (int, error) {
	for {
		fd, _, e := unix.Syscall(unix.SYS_OPEN_BY_HANDLE_AT, uintptr(mount), uintptr(unsafe.Pointer(&h)), uintptr(flags|unix.O_CLOEXEC))
		if e == 0 {
			return int(fd), nil
		}
		if e != unix.EINTR {
			return -1, e
		}
	}
}
