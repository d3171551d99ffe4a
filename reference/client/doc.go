// SPDX-License-Identifier: Apache-2.0

// Package client is the Go client of the worker API.
//
// It owns what a caller must check and is easily forgotten: the boot epoch is learnt from the
// signed health answer over a fresh challenge and from nowhere else; every field of a binding
// receipt is compared, and the sandbox is disposed when one differs; a worker in qualification
// mode is refused unless asked for. Each request carries a capability of its own, minted with
// the key given. Failures are [*api.Error] with a code of the union; an answer that is not what
// the wire allows is RESPONSE_INVALID.
//
// It covers every operation, over a unix socket or TLS 1.3. Streams ([Client.ExecStream],
// [Client.Events], [Client.Open]) hold one line or one buffer at a time, and a stream that ends
// before it said its end is an error: OUTCOME_UNKNOWN for a command, STREAM_CLOSED else.
//
// It never retries exec, in either form, or a file write. It never sends
// anything but what the caller gave, which [Client.Raw] makes usable for attacks on the protocol.
//
// Read next: reference/worker.
package client
