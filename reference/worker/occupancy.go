// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// occupancy says how many connections may be busy with what. Of all of them
//
//   - one workspace has half, so that dozens of its callers may join one create, and no more;
//   - three quarters may hold operations that last as long as a command, a body or a stream does.
//
// A brief operation ends or observes something, and has 30 s for that, as its body and its answer have: it must find a place beside all that
// lasts, since it is what makes places free. So it comes into the quarter that is left, and past the half of its
// workspace by an eighth (two places at least). Half and eighth together bound how many one workspace
// holds, whatever it asks for. What is of no workspace is brief, and has no share: health.
//
// Connections are counted, not requests: a request on a connection that is busy with its workspace already
// takes no place more. Not safe for concurrent use.
type occupancy struct {
	half, past, lasting int // bounds

	by   map[string]busyPlaces // of each workspace that has some
	last int                   // connections that are busy with what lasts, of all workspaces
}

// busyPlaces are connections that are busy with one workspace.
type busyPlaces struct{ lasting, brief int }

// hold is what one connection does for one workspace. It counts as what lasts until it is free of both.
type hold struct {
	requests int
	lasting  bool
}

func newOccupancy(all int) occupancy {
	return occupancy{half: max(all/2, 1), past: max(all/8, 2), lasting: all - all/4, by: map[string]busyPlaces{}}
}

// brief says of an operation that it is none of those that last.
func brief(op api.Op) bool {
	switch op {
	case api.OpHealth, api.OpGet, api.OpRenew, api.OpCancel, api.OpDispose, api.OpPurge:
		return true
	}
	return false
}

// enter makes c busy with one more request, or returns UNAVAILABLE.
func (p *occupancy) enter(c *conn, workspace string, brief bool) error {
	h, of := c.held[workspace], p.by[workspace]
	busy := of.lasting + of.brief
	switch {
	case h.lasting, h.requests > 0 && brief: // it has its place
	case brief && workspace != "" && busy >= p.half && of.brief >= p.past || !brief && busy-min(h.requests, 1) >= p.half:
		return api.E(api.Unavailable, fmt.Errorf("%d connections are busy with this workspace, %d of them briefly", busy, of.brief))
	case !brief && !c.lasting() && p.last >= p.lasting:
		return api.E(api.Unavailable, fmt.Errorf("%d connections are busy with what lasts", p.last))
	case brief:
		of.brief++
	default:
		if h.requests > 0 {
			of.brief--
		}
		if !c.lasting() {
			p.last++
		}
		of.lasting++
		h.lasting = true
	}
	h.requests++
	if c.held == nil {
		c.held = map[string]hold{}
	}
	c.held[workspace], p.by[workspace] = h, of
	return nil
}

// leave ends one request of workspace on c.
func (p *occupancy) leave(c *conn, workspace string) {
	h, of := c.held[workspace], p.by[workspace]
	if h.requests--; h.requests > 0 {
		c.held[workspace] = h
		return
	}
	delete(c.held, workspace)
	switch {
	case !h.lasting:
		of.brief--
	default:
		of.lasting--
		if !c.lasting() {
			p.last--
		}
	}
	p.by[workspace] = of
	if of == (busyPlaces{}) {
		delete(p.by, workspace)
	}
}

// lasting says whether c is busy with something that lasts. Preconditions: the lock of its pool is held.
func (c *conn) lasting() bool {
	for _, h := range c.held {
		if h.lasting {
			return true
		}
	}
	return false
}
