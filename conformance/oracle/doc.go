// SPDX-License-Identifier: Apache-2.0

// Package oracle observes a sandbox from outside: host trees, file growth, disk usage, cgroup
// files, the process table, memory peaks, network traps, the engine, and the latency of a quiet
// neighbour and of the host.
//
// It returns facts with their units; it never judges, never asks the tenant, and never changes
// what it observes. The two exceptions are named: a network trap adds one address to the lab's
// loopback and takes it away again, and engine plants are containers that this run made, removed
// by recorded id. Every oracle has an arming function in package cases that proves, in the same
// run, that it detects a planted positive.
//
// Read next: conformance/cases.
package oracle
