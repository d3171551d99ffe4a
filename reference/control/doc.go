// SPDX-License-Identifier: Apache-2.0

// Package control carries requests from the worker to the supervisor of one sandbox, and
// outcomes back, over one byte stream (the bridge).
//
// It owns the frame format, its bounds, the challenge and the MAC, and both ends of the
// stream. It observes nothing of the machine: peer credentials are the supervisor's to
// check, before [Accept] is called. It never allocates for a length that it has not
// compared with a bound, never trusts a claim of the sandbox further than its form, and
// never repairs a stream: the first bad frame ends it.
//
// # Frames
//
// All integers are big-endian. A frame is a header of 16 bytes, then the payload:
//
//	0   1  version, 1
//	1   1  type
//	2   2  zero
//	4   4  payload length in bytes, within the bounds of the type
//	8   8  request id: chosen by the worker, not zero; 0 in hello only
//
// A request (worker to supervisor, types below 0x80) is followed by a MAC of 32 bytes:
// HMAC-SHA256, keyed with the challenge of this connection, over the sequence number
// (8 bytes; 0 for the first request of the connection, then 1, ...), the header and the
// payload. Bytes that were queued before the connection was accepted cannot carry it, so
// a request whose sender was gone by then is refused, whatever the kernel says of the
// sender's credentials. A reply carries no MAC: the worker treats all of them as hostile.
//
// The payload of the first request is bounded by [FirstRequestMax], since nothing is proven
// before its MAC is.
//
//	0x01 ping     empty                            -> pong
//	0x02 exec     spawn, see below                 -> output*, then outcome, spawn-failed, refused or lost
//	0x03 cancel   empty; id of the running exec    -> nothing of its own
//	0x04 statfs   empty                            -> statfs-reply
//	0x05 stats    empty                            -> stats-reply
//	0x06 exec-secret  u32 length (1 .. 69,734) and secret, then spawn -> as exec
//	0x07 look     u8 count (1 .. 4), then per path u16 length and path -> looked or refused
//
//	0x81 hello         32 bytes: the challenge; sent once, first
//	0x82 pong          empty
//	0x83 output        u8 stream (1 or 2), then 1 .. 65,536 bytes as the command wrote them
//	0x84 outcome       u8 flags (1 timed out, 2 stdout truncated, 4 stderr truncated, 8 cleanup
//	                   proven), u8 signal or 0, u16 exit code (0 .. 255, 0 with a signal),
//	                   u64 duration in microseconds, u64 bytes sent of stdout, u64 of stderr,
//	                   u64 bytes dropped, u64 descendants killed
//	0x85 spawn-failed  u8 step (1 fork, 2 cwd), u32 errno
//	0x86 statfs-reply  u64 blocks, u64 bytes per block, u64 inodes
//	0x87 stats-reply   u16 count (<= 64), then per counter: u8 name length, name, u64
//	0x88 refused       u8 reason (1 busy): ends an exec or a look of which nothing was begun
//	0x89 lost          empty: the keeper of the invocation died, nothing is proven
//	0x8a looked        u32 errno: 0 when every path was looked up to its end, also where nothing is there;
//	                   else why the first of the others was not (110 when the time was over)
//
// spawn is: u32 timeout in milliseconds, u64 output budget in bytes, u8 length and
// invocation id, u16 count and per argument u32 length and bytes, u16 length and cwd, u32
// length and stdin. Nothing may follow.
//
// The paths of a look are of 1 .. 4,096 bytes each, relative to /workspace, without NUL and without an empty,
// "." or ".." component. Nothing may follow. The supervisor looks them up itself, with the tenant's authority,
// starts no process for it, and says nothing of what it found. One look is served at a time, and answered
// within [LookWithin].
//
// The secret is for descriptor 3 of the command. Whoever has sent, passed on or delivered it zeroes
// its own buffers. A supervisor takes an exec-secret only as its first invocation, and after it runs
// no other: it answers refused (busy), so that the container has to be a new one before and after.
//
// Read next: package supervisor, the other user of this one.
package control
