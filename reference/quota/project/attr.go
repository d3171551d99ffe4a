// SPDX-License-Identifier: Apache-2.0

package project

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errNoAttr says that neither kernel nor filesystem has attributes for this kind of file.
var errNoAttr = errors.New("no attributes")

// attr is what quota is about of an inode.
type attr struct {
	projid uint32
	xflags uint32
}

func (a attr) inherits() bool { return a.xflags&xflagProjInherit != 0 }

// opens says whether a file of this kind is opened to get at its attributes. Nothing else ever is.
func opens(kind uint8) bool { return kind == unix.DT_REG || kind == unix.DT_DIR }

// getOpen reads the attributes of a file that is open, which is no O_PATH descriptor's.
func getOpen(fd int) (fsxattr, error) {
	var x fsxattr
	if err := ioctl(fd, fsIocFSGetXattr, unsafe.Pointer(&x)); err != nil {
		return x, setting(err)
	}
	return x, nil
}

// setOpen changes the project id and the inherit flag of what x was read of. Every other attribute stays.
func setOpen(fd int, x fsxattr, projid uint32, inherit bool) error {
	x.projid = projid
	x.xflags &^= xflagProjInherit
	if inherit {
		x.xflags |= xflagProjInherit
	}
	return setting(ioctl(fd, fsIocFSSetXattr, unsafe.Pointer(&x)))
}

// setting explains an error. ext4 keeps an immutable file's id; XFS sets it all the same.
func setting(err error) error {
	switch err {
	case nil:
		return nil
	case unix.EPERM:
		return fmt.Errorf("%w: project id: %w; is it immutable?", ErrForeign, err)
	case unix.EOPNOTSUPP, unix.ENOTTY, unix.EINVAL:
		return fmt.Errorf("%w: project id: %w; XFS is needed, or ext4 with the feature project", ErrTool, err)
	}
	return fmt.Errorf("project id: %w", err)
}

// getSpecial reads the attributes of a symlink, FIFO or socket by its O_PATH descriptor.
func (t *tree) getSpecial(path int) (fileAttr, error) {
	var f fileAttr
	if !t.byName {
		return f, errNoAttr
	}
	return f, none(t.proc.attr(unix.SYS_FILE_GETATTR, path, &f))
}

func (t *tree) setSpecial(path int, f fileAttr, projid uint32) error {
	f.projid = projid
	return none(t.proc.attr(unix.SYS_FILE_SETATTR, path, &f))
}

func none(err error) error {
	switch err {
	case unix.ENOSYS, unix.EOPNOTSUPP, unix.ENOTTY: // before Linux 6.17, or on ext4
		return errNoAttr
	}
	return setting(err)
}
