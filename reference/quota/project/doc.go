// SPDX-License-Identifier: Apache-2.0

// Package project bounds workspaces by project quota of ext4 and XFS: a directory per workspace, a
// project id per directory, hard limits of bytes and inodes per id, held by the kernel.
//
// It owns everything under one directory (mode 0700, root) of a filesystem that enforces project
// quota, and a range of project ids. It observes the kernel (quotactl_fd, statx, statfs) and believes
// neither mount options nor its own records. It never opens a special file, never follows a link or
// crosses a mount, never resolves a path with more than one name, never builds a path from a workspace
// id, and never gives an id away again before the kernel counts nothing of it.
//
// Layout, for H = the first 32 hex digits of SHA-256 of the workspace id:
//
//	lock               flock: host reserve check and allocation of ids
//	records/H.json     the durable intent; written first, removed last
//	records/H.lock     flock: one operation per workspace
//	trees/H            the workspace
//	trash/H-N          what is being removed of it
//
// # Walks
//
// Apply goes over the tree three times. The snapshot changes nothing: it takes each inode's number,
// generation, kind and link count, and refuses devices, mount points and files with a name outside.
// The second pass gives the id to each inode that is what the snapshot saw, and to directories the
// inherit flag before their entries are listed: from then on the kernel itself gives the id to what is
// made in them, and refuses to rename or link in what has another (EXDEV). The third pass reads every
// inode again. In each pass the entries of each directory are compared by a keyed 64-bit digest.
//
// What differs ends the walk with ErrChanged, and every id that it has set is put back by file handle,
// wherever the inode is by then. Not put back: what was made meanwhile in a directory that had the id
// already, and took it from there. A walk that is killed puts nothing back; the record keeps the id,
// and the next Apply ends what it began.
//
// Directories are opened by openat2(2) from their parent; regular files by the handle that the
// snapshot took of them; symlinks, FIFOs and sockets are only ever O_PATH. Those get the id by
// file_setattr(2) on XFS from Linux 6.17 on; elsewhere they are counted as unset, and cost the tenant
// nothing. What a tenant makes under its id has it from the start, whatever its kind.
//
// A tree of any depth and width is walked with at most 96 directories of a branch and 20 more open at
// once, a buffer of 32 KiB for each, and 48 to 56 bytes for each inode; see MaxInodes.
//
// # Bounds
//
// The root of the workspace is not charged to the tenant: an empty workspace is at 0 and 0, and a full
// one has exactly its inodes. Bytes are rounded up to 4 KiB. Root writes past them on ext4
// (CAP_SYS_RESOURCE), so nothing writes into a workspace as root.
//
// # A workspace that Apply refuses
//
// A file that has a name outside of the workspace, or a device in it, keeps it from being started.
// Repair copies the one and removes the other; Apply follows. Files that are immutable keep their id
// on ext4: take the flag away (chattr -i). Mount points: unmount them.
//
// Read cmd/hallmark-quota next, then reference/quota.
package project
