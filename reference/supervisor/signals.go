// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct of rt_sigaction(2) on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// Handlers of rt_sigaction(2), and the highest signal of Linux.
const (
	sigDefault = 0
	sigIgnore  = 1
	maxSignal  = 64
)

// unignore gives every signal that this process ignores its default action. execve(2) resets
// handlers but keeps what is ignored, so a command would inherit whatever the engine, or its
// parents, ignored: GNU make, for one, ignores 32 and 33 in its children.
func unignore() error {
	for sig := uintptr(1); sig <= maxSignal; sig++ {
		if sig == uintptr(unix.SIGKILL) || sig == uintptr(unix.SIGSTOP) {
			continue
		}
		var now sigaction
		if _, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), unsafe.Sizeof(now.mask), 0, 0); e != 0 {
			return e
		}
		if now.handler != sigIgnore {
			continue
		}
		now = sigaction{handler: sigDefault}
		if _, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&now)), 0, unsafe.Sizeof(now.mask), 0, 0); e != 0 {
			return e
		}
	}
	return nil
}
