// SPDX-License-Identifier: Apache-2.0

// Package loopimage keeps one fixed-size ext4 image per workspace and mounts it.
//
// It owns everything under one directory (mode 0700, root): records, images, mount
// points and the loop devices that name its images. It observes the kernel (statx, statfs,
// sysfs) and never believes its own record of a mount. It never grows an image, never
// mounts one that e2fsck does not call clean, never attaches one that a loop device still
// names, and never builds a path from a workspace id: file names are a hash of it.
//
// Layout, for H = the first 32 hex digits of SHA-256 of the id:
//
//	lock               flock: host reserve check and allocation
//	records/H.json     the durable intent; written first, removed last
//	records/H.lock     flock: one operation per workspace
//	images/H.tmp       an image being made; never mounted
//	images/H.img       a complete image (renamed into place)
//	mnt/H              mount point: root, mode 0000, immutable while nothing is mounted
//
// # Bounds
//
// Bytes: the tenant can allocate exactly the requested bytes, rounded up to 4 KiB blocks,
// for file contents and for the metadata that its files need (directory and extent
// blocks, large xattrs). The root directory's own first block is not charged. The kernel keeps a pool of at
// most 4,096 blocks (ext4's reserved_clusters) so that delayed allocation cannot fail
// late; this package sets the pool at each mount to what is left over the bound, and
// metadata that the kernel must write at a full filesystem comes out of it. So usage at a
// full workspace is >= the limit, by at most the pool, and always within the image.
//
// Inodes: ext4 has whole inode-table blocks (16 inodes) in each 128 MiB group. What that
// rounds up is declared reserved (s_first_ino), so the tenant can create exactly the requested number;
// the root directory is a reserved inode and is not charged. Only where the excess does not fit
// into the first group (an inode per more than 16 KiB x groups / 8, say, below 264,000 inodes on 16 GiB) the limit
// exceeds the request by less than 16 inodes per group. Usage always reports the real limit.
//
// So at a full workspace inodes == limit, and limit <= bytes <= limit + pool. Asserted by
// TestBoundsAreExact and TestTenantFillsToTheLimitAndNoFurther of reference/quota.
//
// The journal (4 MiB, 16 MiB from 512 MiB on) is there because a workspace outlives
// sandboxes and host crashes: without one, rename-into-place is not atomic over a crash
// and each unclean mount needs a full check. It is not charged to the tenant.
//
// The mkfs.ext4, e2fsck and debugfs programs of e2fsprogs are called by absolute path
// with a fixed environment. Read cmd/hallmark-quota next, then reference/quota.
package loopimage
