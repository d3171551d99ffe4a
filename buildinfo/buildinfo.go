// SPDX-License-Identifier: Apache-2.0

// Package buildinfo holds the identity that ci/build stamps into a binary.
// It owns two link-time strings and never guesses: an unstamped binary says
// "unknown", and the gate refuses evidence from one.
package buildinfo

// Unknown is what an unstamped binary says of its commit and tree state.
const Unknown = "unknown"

// Version is the release of the suite and of the worker.
const Version = "0.1.0"

var (
	commit    = Unknown // set with -ldflags -X
	treeState = Unknown // "clean" or "dirty"
	tenant    = Unknown // of hallmark only
)

// Commit returns the 40 hex digits of the source commit, or [Unknown].
func Commit() string { return commit }

// TenantDigest returns "sha256:" and the digest of the attack program that was built with this
// suite, or [Unknown]. Evidence comes from no other attack program.
func TenantDigest() string { return tenant }

// TreeState returns "clean", "dirty" or [Unknown].
func TreeState() string { return treeState }
