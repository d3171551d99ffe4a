// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"net"
	"time"
)

// Authority is what a driver offers that holds the key for the worker API's capabilities: a case
// then signs, keeps and sends requests itself, byte by byte. It comes with the part
// runtime.authority. All methods are safe for concurrent use.
type Authority interface {
	// Mint returns a capability for exactly req, which is not sent; req.Token is not looked at. It
	// is for the boot epoch that the daemon told when the driver last saw it start, and lives for
	// lifetime: whole seconds, 1 to 300. The epoch stays that of the minting: a capability that is
	// kept over a restart is one of the earlier epoch.
	Mint(ctx context.Context, req RawRequest, lifetime time.Duration) (token string, err error)
	// Dial opens one connection on which the worker API is spoken in HTTP/1.1. The caller closes it.
	Dial(ctx context.Context) (net.Conn, error)
	// NonceLimits are the capacity of the daemon's nonce store and one workspace's share of it, as
	// its signed health answer gives them.
	NonceLimits(ctx context.Context) (all, perWorkspace int64, err error)
}

// PeerSpec says which second daemon is asked for.
type PeerSpec struct {
	// SameState starts it on the state directory, with the identity, of the target's own daemon,
	// which goes on running. Otherwise it has a state directory, a worker id and workspaces of its
	// own; the key for capabilities is the same.
	SameState bool
	// Bounds of its nonce store; zero is the daemon's own default.
	Nonces, NoncesPerWorkspace int64
}

// Peers starts further daemons of the target's own program. It comes with the part
// controller.peers. A case asks a peer for nothing that makes a sandbox.
type Peers interface {
	// Start returns when the daemon has answered. One that ends at its start is a refusal: an
	// [*Error] with the code "exit-STATUS".
	Start(ctx context.Context, spec PeerSpec) (Peer, error)
}

// Peer is a running second daemon.
type Peer interface {
	Authority
	// Close ends it and removes what it had. Repeating it is harmless.
	Close() error
}
