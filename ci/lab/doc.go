// SPDX-License-Identifier: Apache-2.0

// Package lab runs a private Docker engine with real sandbox runtimes for the
// suite and for tests.
//
// It owns the folders lab/, packages/ and runtimes/ of the cache, one short run
// folder, one cgroup parent, one network namespace and every process that lives
// in them. It observes the whole host (processes, mounts, loop devices, cgroups
// in each hierarchy, network namespaces) to prove that nothing of its own is
// left. It never installs or starts a service, never reconfigures an engine that
// is already there, never touches a process, mount or cgroup outside its own
// roots, and never reports itself gone without having looked.
//
// Everything that a lab owns is found again from the path of the cache folder
// alone, so that a lab whose starter was killed is swept by the next Up or Down.
// Only commands and tests import this package. Read up.go next.
package lab
