// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

// Shape of the guest.
const (
	memoryMiB = 3072
	cpus      = 2
	// quotaDisk is the size in bytes of each of the two disks with project quota. They take what is written.
	quotaDisk = 8 << 30
	niceness  = 5
)

// emulator is QEMU out of the distribution's packages, with what it reads at its start.
type emulator struct {
	program lab.Binary
	data    []string // folders for -L
	modules string   // the accelerator is a module of its own
}

func findEmulator(ctx context.Context, o Options) (emulator, error) {
	ex, err := lab.Extract(o.Cache, o.Out)
	if err != nil {
		return emulator{}, err
	}
	var e emulator
	if e.program, err = ex.Program(ctx, "qemu-system-x86_64", "qemu-system-x86"); err != nil {
		return e, err
	}
	for _, d := range []struct{ pkg, sub string }{{"qemu-system-data", "usr/share/qemu"}, {"seabios", "usr/share/seabios"}} {
		dir, err := ex.Folder(ctx, d.pkg)
		if err != nil {
			return e, err
		}
		e.data = append(e.data, filepath.Join(dir, d.sub))
	}
	common, err := ex.Folder(ctx, "qemu-system-common")
	if err != nil {
		return e, err
	}
	found, err := filepath.Glob(filepath.Join(common, "usr/lib/*/qemu/accel-tcg-x86_64.so"))
	if err != nil || len(found) > 1 {
		return e, fmt.Errorf("the package qemu-system-common holds %d accelerators", len(found))
	}
	if len(found) == 1 { // otherwise it is built in
		e.modules = filepath.Dir(found[0])
	}
	return e, nil
}

// environment is that of the emulator. What has no name of the guest's disks lies in tmp while it runs.
func (e emulator) environment(tmp string) []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TMPDIR=" + tmp}
	if len(e.program.Libraries) > 0 {
		env = append(env, "LD_LIBRARY_PATH="+strings.Join(e.program.Libraries, ":"))
	}
	if e.modules != "" {
		env = append(env, "QEMU_MODULE_DIR="+e.modules)
	}
	return env
}

// clock makes the guest's time count its instructions, one for each nanosecond while it works; while it waits, its time
// is the host's. So the guest is always a machine of one speed, a fifth of a present one's, and no time-out in it,
// of the engine, the worker or a case, depends on how busy the host is or has to be made longer. The price is that the
// two CPUs take turns.
var clock = []string{"-accel", "tcg,thread=single,tb-size=1024", "-icount", "shift=0,sleep=on"}

// arguments start an image. The control port's other end is descriptor fd. The root is NVMe, the one disk that the
// distribution's kernel needs no module for, so that no initramfs is needed. It is the only one, since the kernel
// numbers NVMe disks in the order in which they answer, and cannot be told another name of its root; the others are
// known by their serial numbers. With snapshot=on each disk has a layer of its own in a file without a name, and the
// file below is opened for reading only.
func (e emulator) arguments(img Image, blank string, fd int, kernelArgs []string) []string {
	line := append([]string{"root=/dev/nvme0n1", "rw", "rootfstype=ext4", "init=/init", "console=ttyS0", "quiet", "panic=-1", "mitigations=off"}, kernelArgs...)
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35,vmport=off,smm=off,hpet=off",
		"-cpu", "max", "-smp", fmt.Sprint(cpus), "-m", fmt.Sprint(memoryMiB),
		"-kernel", img.Kernel, "-append", strings.Join(line, " "),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", fmt.Sprintf("socket,id=control,fd=%d", fd),
		"-device", "virtserialport,chardev=control,name=" + link.Port,
		"-drive", layer("root", img.Root), "-device", "nvme,drive=root,serial=root",
	}
	for _, name := range link.Disks {
		args = append(args, "-drive", layer(name, blank), "-device", fmt.Sprintf("virtio-blk-pci,drive=%[1]s,serial=%[1]s", name))
	}
	for _, d := range e.data {
		args = append(args, "-L", d)
	}
	return append(args, clock...)
}

func layer(id, file string) string {
	return fmt.Sprintf("if=none,id=%s,format=raw,snapshot=on,file=%s", id, strings.ReplaceAll(file, ",", ",,"))
}

// blankDisk is an empty file of the size of a quota disk, below which every run has its own layer.
func (o Options) blankDisk() (string, error) {
	file := filepath.Join(o.dir(), "blank.img")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o444)
	if err != nil {
		return "", fmt.Errorf("make blank disk: %w", err)
	}
	defer f.Close()
	return file, f.Truncate(quotaDisk)
}
