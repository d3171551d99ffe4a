// SPDX-License-Identifier: Apache-2.0

// Package supervisor is PID 1 of a sandbox, and the two root helpers that go with it.
//
// It owns the control socket, the check of peers, every tenant process from its start to the
// proof of its end, and the bytes that it wrote. It observes the tenant through wait4(2) and
// /proc only. It opens no path that the tenant can change but to look it up, see below, never signals a process that it
// has not proven to be of the invocation, or nobody's, never waits for a tenant to close a pipe, and never
// lets one connection or invocation hold more than its own slot. A tenant (uid 65532) cannot
// signal or trace these processes: they keep uid 0.
//
// # Processes
//
//	PID 1 (Run)        listens, authenticates, relays frames, reaps; starts keepers only
//	keeper (Invoke)    child of PID 1 and PR_SET_CHILD_SUBREAPER; runs one invocation at a time
//	launch (Launch)    child of its keeper in a session of its own; becomes the tenant, then the leader
//	leader             the command: the same process after its execve, uid and gid 65532
//	bridge (Bridge)    started once by the engine; carries bytes between the worker and the socket
//
// A keeper is the parent of every orphan of its invocation, whatever the tenant does with
// sessions and double forks. So "no descendant is left" is one answer of the kernel: ECHILD from
// wait4(-1). Not every kernel keeps that promise: runsc gives orphans to PID 1 once a tenant has cleared the
// subreaper's mark of a process above them, and to nobody when a pid namespace of the tenant's ends.
// So PID 1 looks for such strays itself before it passes a proven outcome on, and kills them. All outcomes that wait
// share the looks, and no lock is held over one. Strays that keep coming are made by something that runs: then all
// processes of the tenant's are stopped for a moment, so that the looks overtake them. What was killed so counts for
// an invocation that had no company only, since a stray shows nothing of whose it was. A keeper that has
// proven its end is used again; any other is killed, what it leaves
// behind falls to PID 1 and is killed there, and the invocation is reported lost or unproven.
//
// The engine may run helpers as root here. What it would run as the tenant is a stray.
//
// # End of an invocation
//
// When the leader exits, what is left of its tree is stopped and killed at once. At the time-out, or on a
// cancel, the leader's group gets SIGTERM, then [Grace], then the same. Killing is done in rounds, bounded by
// [KillWithin]: the tree is stopped until a look at it finds nothing that runs (a stopped process
// holds its slot and cannot fork, so a fork bomb cannot outrun the sweep), then killed, then reaped.
// A direct child cannot be mistaken: its pid is ours until we reap it, and we do not reap while
// we look. Any other descendant is held by a pidfd and its parent is read again before each signal.
//
// # Counters
//
// Stats replies carry: accepted, requests, looks, invocations, keepers, orphans-killed, audit-dropped, and
// refused.{cred,uid,gid,peer,busy,hello,silent,mac,frame,slow}. Every refusal also writes one line
// on stderr, at most ten a second; so does an invocation that is lost or not proven, with the worker's id of it.
//
// # Launch
//
// A keeper forks the launch stage as root, and only after its execve does that become the tenant and execute
// the command. A child of vfork(2) with the tenant's uid could be stopped by any tenant process in the
// sandbox, and its parent with it, which waits for the execve; so there is none. The launch stage can
// be stopped once it has the tenant's uid, which is no worse than stopping the command: the keeper
// does not wait for it, and ends it at the time-out.
//
// A keeper that says no end of its invocation in time is given up: PID 1 kills its tree, then itself, and reports the
// invocation lost.
//
// # Looks
//
// The worker names files that it has taken away, so that a sentry lets go of what it keeps by those names. PID 1 looks
// them up itself: no process, so no room among the tenant's tasks, and no place among its commands. A thread that
// acts as the tenant walks from folder to folder by O_PATH, follows no link, reads nothing and answers only
// whether it came to an end. One look runs at a time, another is refused meanwhile, and the answer comes within
// control.LookWithin; a look that the kernel keeps for longer holds its slot and nobody else. Only the
// effective ids of that thread are the tenant's, since a thread of PID 1 with more of them could be signalled.
//
// # Secrets
//
// The leader of an exec-secret reads its secret on descriptor 3, from a pipe that its keeper fills within
// a bound and closes; HOME is then an empty folder on a tmpfs. Nobody else has an end of the pipe. Such an invocation
// is the first and the last of its sandbox: PID 1 refuses it where a command has run before, and refuses
// every command after it.
//
// # Threads
//
// The Go runtime ends a process that cannot get a thread. A tenant at the process limit must not
// be able to cause that, so each process here makes the threads that it can ever need at its start. PID 1, the bridge
// and the first two keepers start before any tenant exists. Another keeper may meet the limit and die of it: so it
// says when it is ready, and until then its end is an error of the spawn.
//
// Read next: package control for the frames.
package supervisor
