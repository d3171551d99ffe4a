// SPDX-License-Identifier: Apache-2.0

// Package interop holds our bundles against a verifier that is not ours: sigstore-go, in a module
// of its own, so that nothing of it reaches the requirements of Hallmark.
//
// It owns the question "what does a generic verifier say of this bundle file, to somebody who has
// the signers' public keys and the digest of one image", and the published list of the rows of the
// negative corpus to which it says yes. It is never asked by the gate.
package interop
