// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// pool keeps keepers ready, so that a command costs one spawn and not two.
type pool struct {
	reaper *reaper
	audit  *audit

	mu   sync.Mutex
	idle []*handle
	busy int
	next uint64 // of an invocation; how many there were
	// company is the last invocation that began while others ran: all of those up to it that run still have, or
	// had, company.
	company uint64
	// spent: a secret was given out, so nothing else runs here, ever. The worker replaces the
	// container; this holds whether it does or not.
	spent bool
}

// handle is PID 1's side of one keeper.
type handle struct {
	*child
	conn net.Conn
	send sync.Mutex
}

// fill makes the pool's first keepers.
func (p *pool) fill() error {
	for range idleKeepers {
		h, err := p.spawn(context.Background())
		if err != nil {
			return fmt.Errorf("start keeper: %w", err)
		}
		p.mu.Lock()
		p.idle = append(p.idle, h)
		p.mu.Unlock()
	}
	return nil
}

// get takes an idle keeper or starts one. busy is true when too many run, when one with a secret has
// run or runs, and for one with a secret when any has run before; err is the kernel's, or ECANCELED when ctx ended
// before there was a keeper.
func (p *pool) get(ctx context.Context, secret bool) (h *handle, id uint64, busy bool, err error) {
	p.mu.Lock()
	if p.busy >= maxInvocations || p.spent || secret && p.next > 0 {
		p.mu.Unlock()
		return nil, 0, true, nil
	}
	p.busy++
	p.spent = secret
	p.next++
	id = p.next
	if p.busy > 1 {
		p.company = id
	}
	for len(p.idle) > 0 {
		h, p.idle = p.idle[len(p.idle)-1], p.idle[:len(p.idle)-1]
		select {
		case <-h.gone: // killed while idle
			h.conn.Close()
			continue
		default:
		}
		p.mu.Unlock()
		return h, id, false, nil
	}
	p.mu.Unlock()
	h, err = p.spawn(ctx)
	if err != nil {
		p.mu.Lock()
		p.busy--
		p.mu.Unlock()
	}
	return h, id, false, err
}

// put takes a keeper back. Only one that has proven its tree gone may come back clean.
func (p *pool) put(h *handle, clean bool) {
	p.mu.Lock()
	p.busy--
	if clean && len(p.idle) < idleKeepers {
		p.idle = append(p.idle, h)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	h.conn.Close() // a keeper exits when its channel ends
	if clean {
		return
	}
	p.reaper.kill(h.child)
	select {
	case <-h.gone:
	case <-time.After(KillWithin):
	}
	p.reaper.sweep(time.Now().Add(KillWithin))
}

// accompanied says whether another invocation has run beside one that has not been put back.
func (p *pool) accompanied(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return id <= p.company
}

// spawn starts a keeper and waits until it is ready, or ctx ends. One that meets a limit of threads or memory before
// that dies of it: that is EAGAIN, as fork(2) says it.
func (p *pool) spawn(ctx context.Context) (*handle, error) {
	if ctx.Err() != nil {
		return nil, unix.ECANCELED
	}
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make channel: %w", err)
	}
	f := os.NewFile(uintptr(sp[0]), "keeper")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		unix.Close(sp[1])
		return nil, fmt.Errorf("open channel: %w", err)
	}
	// Standard streams: nothing to read, PID 1's own stderr for what a dying runtime says.
	c, err := p.reaper.start([]string{Binary, "invoke"}, []string{"GOMAXPROCS=1"},
		[]uintptr{0, 1, 2, uintptr(sp[1])})
	unix.Close(sp[1])
	if err != nil {
		conn.Close()
		return nil, err
	}
	p.audit.count("keepers", 1)
	if err := awaitReady(ctx, conn); err != nil {
		p.reaper.kill(c)
		conn.Close()
		return nil, err
	}
	return &handle{child: c, conn: conn}, nil
}

// awaitReady reads [keeperReady] within [readyWithin], and before ctx ends.
func awaitReady(ctx context.Context, conn net.Conn) error {
	conn.SetReadDeadline(time.Now().Add(readyWithin))
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	var b [1]byte
	_, err := conn.Read(b[:])
	if !stop() { // it will set, or has set, the deadline: this keeper is of no use any more
		return unix.ECANCELED
	}
	conn.SetReadDeadline(time.Time{})
	if err != nil {
		return fmt.Errorf("keeper does not get ready: %w: %w", unix.EAGAIN, err)
	}
	return nil
}

func (h *handle) write(f control.Frame) error {
	h.send.Lock()
	defer h.send.Unlock()
	b := control.Append(make([]byte, 0, control.HeaderSize+len(f.Payload)), f)
	_, err := h.conn.Write(b)
	clear(b) // it may hold a secret
	return err
}
