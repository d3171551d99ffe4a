// SPDX-License-Identifier: Apache-2.0

// Package credential turns references into secrets, and secrets into the one frame that an
// authorised process reads on descriptor 3.
//
// It owns the rules of a reference, the bindings that this worker trusts, the providers that it
// ships, leases, delivery attempts, and the format of the frame. It observes what a provider
// answers, and one clock. It never takes anything from a request on trust: [Resolver.Mint] makes
// each reference anew from the binding of that name and from what the worker itself knows of the
// sandbox, and refuses what differs. It never asks a provider before the delivery attempt is
// durable, never leaves a lease undisposed, and never prints, wraps or logs a value, nor any text
// of a provider, which may hold one.
//
// # From a reference to a frame
//
//	Mint    nothing happens; every refusal that needs no provider
//	Lease   attempts become durable, then each provider is asked, then its payload is judged
//	Take    once: the frame; values of the lease are zeroed
//	Dispose always, any number of times: values are zeroed and each provider hears of it once
//	Settle  after a start: whom a process that died has not told
//
// # Payload
//
// A provider answers with one strict JSON text of at most [MaxPayloadBytes]:
//
//	{"version":"hallmark.credential.v1",
//	 "scope":{"workspaceId":"ws-1","bindingId":"registry","executionId":"session-1"},
//	 "expiresAtUnixMs":1767225600000,
//	 "fields":[{"fieldId":"token","value":"czNjcjN0"}]}
//
// value is standard base64. The scope must be that of the minted reference; an execution is the
// session that the sandbox was created for. The fields must be those that were asked for: none
// missing, none besides, none twice.
//
// # Frame
//
// Big-endian: magic "HMC1"; u16 field count (1 .. 16); per field u16 name length (1 .. 256), u32
// value length, name, value; nothing after the last, no name twice, values 64 KiB in all.
//
// # Zeroing
//
// Payloads, values and frames live in buffers of this package's own, which are zeroed as soon as the
// next form exists. Copies in the kernel, in the engine and in the sandbox are beyond it: the
// sandbox's container is replaced afterwards.
//
// Read next: package credentialtest, the contract of a provider as a test; then reference/session.
package credential
