// SPDX-License-Identifier: Apache-2.0

// Package workspace does file operations in a workspace on the host, on behalf of a
// client, while a hostile tenant changes the same tree.
//
// It owns descriptors and threads, for one operation each; a [Tree] owns one descriptor of
// the workspace's root, and a [Watcher] one thread and one inotify(7) instance. It observes names as bytes. It never resolves a path other than by
// openat2(2) with RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV, has no fallback where that is missing, never follows a symlink,
// never opens a special file, and never acts with root's authority: each operation runs on
// an OS thread that has given up uid, gid, groups and capabilities for good, so that a
// mistake here is a mistake of the tenant against itself, and quota limits bind.
//
// # Paths
//
// Relative, 1 to 4,096 bytes, without NUL and without an empty, "." or ".." component.
// Stat and List also take the empty path for the workspace itself.
//
// # Credentials of threads
//
// setresuid(2) on a thread clears the dumpable flag of the whole process: no core dumps,
// and /proc/<pid> belongs to root. A process that imports this package must not change its
// own credentials with the syscall package, which insists that all threads are alike.
//
// Read reference/quota for the bound on what is written, reference/session for who may call.
package workspace
