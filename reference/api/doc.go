// SPDX-License-Identifier: Apache-2.0

// Package api is the wire of hallmark.worker.v1: types, error codes, bounds, and the
// decoding and validation of every request.
//
// It owns what a well-formed request is. Decoding is by package strictjson; a body that has
// passed here is within the bounds of PROTOCOL.md, so that later layers need not ask again.
// Refusals are [*Error] with REQUEST_INVALID, PATH_UNSAFE or PROTOCOL_MISMATCH. The package
// does no I/O, holds no clock, and repairs nothing: no trimming, no cleaning of paths, no
// defaults for absent members.
//
// Read next: reference/capability, then reference/worker.
package api
