// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// loopTries bounds the races for a free device with other users of the host.
const loopTries = 64

// backing returns what a loop device names; "" when it is not bound.
func backing(sysBlock string) string {
	b, err := os.ReadFile(sysBlock + "/loop/backing_file")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

// holders returns the loop devices that name the image, also after it was unlinked.
// The kernel keeps such a device as long as anything uses it: a mount in another
// namespace, or a sandbox after a successful umount.
func holders(image string) ([]string, error) {
	devs, err := filepath.Glob("/sys/block/loop*")
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var out []string
	for _, d := range devs {
		if name := backing(d); name == image || name == image+" (deleted)" {
			out = append(out, filepath.Base(d))
		}
	}
	return out, nil
}

// attach binds image to a free loop device that the kernel detaches by itself when the last
// user goes (loop(4), LO_FLAGS_AUTOCLEAR; LOOP_CONFIGURE is Linux 5.8). The caller closes the
// device after mounting it: until then the open descriptor keeps it.
func attach(image string) (*os.File, error) {
	img, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	defer img.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: loop devices: %w; load the module loop", ErrTool, err)
	}
	defer ctl.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find free loop device: %w", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("open loop device: %w", err)
		}
		cfg := unix.LoopConfig{Fd: uint32(img.Fd()), Size: blockSize}
		cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], image)
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &cfg)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("bind loop device: %w", err)
		}
	}
	return nil, fmt.Errorf("%w: no free loop device in %d tries", ErrBusy, loopTries)
}
