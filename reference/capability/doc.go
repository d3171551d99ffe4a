// SPDX-License-Identifier: Apache-2.0

// Package capability mints and verifies the signed statements of the wire: capabilities of the
// control plane (JWT), and the worker's binding receipts and health statements (compact JWS).
//
// It owns their exact shape. All are Ed25519 with "alg":"EdDSA", a key id, and a typ of their
// own, so that one kind never passes as another. What is parsed has first passed a size bound
// and an alphabet check; after the signature, header and claims are decoded again by package
// strictjson into exact structs, since golang-jwt v5.3.1 accepts duplicate names, case
// variants, crit, any typ, a missing iat and a newline in base64.
//
// It also owns the tokens' clock: see [Clock]. It never consumes a nonce and never reads a
// body; reference/worker does both, in the order of PROTOCOL.md.
//
// Read next: reference/worker.
package capability
