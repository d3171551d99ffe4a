// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// authority signs for one worker, whichever of its processes runs.
type authority struct {
	client *client.Client
	epoch  func() string
	socket string
}

func (d *driver) authority() authority {
	socket := ""
	if d.run != nil {
		socket = d.run.caller.Socket
	} else {
		socket = d.cfg.Attach.Socket
	}
	return authority{d.client, func() string { return *d.epoch.Load() }, socket}
}

func (a authority) Mint(_ context.Context, req target.RawRequest, lifetime time.Duration) (string, error) {
	seconds := int64(lifetime / time.Second)
	if lifetime%time.Second != 0 || seconds < 1 || seconds > api.MaxTokenSeconds {
		return "", fmt.Errorf("mint: a lifetime of %s", lifetime)
	}
	g := capability.Grant{
		Op: api.Op(req.Op), Method: req.Method, Target: req.Target, Body: req.Body, WorkspaceID: req.WorkspaceID, SandboxID: req.SandboxID,
	}
	if g.Op == api.OpHealth {
		var err error
		if g.Challenge, err = capability.Random(); err != nil {
			return "", err
		}
	} else {
		g.Epoch = a.epoch()
	}
	m := a.client.Minter()
	claims, err := m.Claims(g)
	if err != nil {
		return "", fmt.Errorf("mint: %w", err)
	}
	claims.ExpiresAt = claims.IssuedAt + seconds
	return m.Sign(claims)
}

func (a authority) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", a.socket)
}

func (a authority) NonceLimits(ctx context.Context) (all, perWorkspace int64, err error) {
	h, err := a.client.Health(ctx)
	if err != nil {
		return 0, 0, coded(err)
	}
	if h.Limits.Nonces <= 0 || h.Limits.NoncesPerShare <= 0 {
		return 0, 0, errors.New("the worker reports no bound of its nonce store")
	}
	return h.Limits.Nonces, h.Limits.NoncesPerShare, nil
}
