// SPDX-License-Identifier: Apache-2.0

// Package translog is a transparency log of evidence in a directory: append-only, and checked so.
//
// The formats are those of C2SP: a directory in the form of tlog-tiles, whose checkpoint is a
// tlog-checkpoint in a signed note of Ed25519, with cosignatures of witnesses (tlog-cosignature v1)
// behind the log's own signature; an inclusion proof is a tlog-proof file beside the bundle. An entry
// is a text of two lines that names an evidence file, and covers every byte of it:
//
//	hallmark evidence v1
//	sha256:<64 hex digits, of the evidence file>
//
// A log shows who published what, and that nothing was taken back; what is logged is not thereby
// good. Three parties keep a memory, each its own file, and refuse a log that forked, shrank or was
// rewritten since: the log's writer ([Open]), each witness and each follower ([Follow]). When the
// writer's memory is lost, start a new log under a new key.
//
// It owns the log's directory and these memories. It never decides whether evidence is admitted.
package translog
