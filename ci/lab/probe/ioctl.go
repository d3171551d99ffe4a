// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func projectIDRoundTrip(f *os.File) error {
	var attr fsxattr
	if err := ioctl(f, fsGetXattr, &attr); err != nil {
		return err
	}
	return ioctl(f, fsSetXattr, &attr)
}

// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR of linux/fs.h, on architectures whose
// direction bits are the generic ones (amd64, arm64).
const (
	fsGetXattr = 0x801c581f
	fsSetXattr = 0x401c5820
)

func ioctl(f *os.File, req uintptr, attr *fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), req, uintptr(unsafe.Pointer(attr)))
	if errno != 0 {
		return errno
	}
	return nil
}

func newUserNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
}
