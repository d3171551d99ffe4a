// SPDX-License-Identifier: Apache-2.0

// Package worker is the daemon's front: it listens, authenticates, decodes, dispatches, and
// turns every failure into a code of the union.
//
// It owns the order of checks of PROTOCOL.md: size of headers, signature and claims, nonce,
// bounded body, digest, strict decoding, and only then session (binding, lease, effect). For a
// file write, whose body streams, binding and lease come before the body and the digest decides
// at its end. Unsigned traffic consumes nothing but its own connection. Causes go to the log
// with the request id; the wire carries a code and its fixed sentence: as the answer, as the last
// line of a stream that has begun, or, in the middle of a file, not at all: the connection is cut.
//
// It never owns lifecycle, never touches a workspace or an engine itself, and has no route for
// what is not built. It also holds the configuration file's type and the content-addressed
// copies of the helper binaries, since cmd/hallmark-worker must stay wiring.
//
// Read next: reference/session.
package worker
