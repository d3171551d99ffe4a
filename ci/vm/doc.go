// SPDX-License-Identifier: Apache-2.0

// Package vm runs a Debian guest under QEMU's software emulation, for the cohort whose facts this host does not have:
// another kernel, cgroup v2, a newer engine, ext4 and XFS with enforced project quota.
//
// It owns the folder vm/ of the cache (image and package files), and of each running guest one process, which is the
// emulator. It installs nothing but the small tools that the lab would, gives the guest no network, opens no port and
// leaves no file of a guest: the disks' changes are in files that have no name. The emulator ends with the process
// that started it, however that ends. The guest is not trusted: what comes out of it is bounded, and written below the
// folder that the caller names.
//
// The image is made of the distribution's packages, extracted and not configured, with /init of our own (package
// guest). Read image.go next, then machine.go; package link has what host and guest say to each other.
package vm
