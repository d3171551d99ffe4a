// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
)

// stderrBytes of a bridge are logged; the rest is dropped.
const stderrBytes = 4096

// Bridge starts the root helper in the sandbox and returns its standard streams. There is
// one per sandbox, opened right after the start and kept. Closing it ends the helper.
func (e *Engine) Bridge(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, bridgeDeadline)
	defer cancel()
	ex, err := e.cli.ContainerExecCreate(ctx, id, container.ExecOptions{
		User: "0:0", Cmd: []string{SupervisorTarget, "bridge"}, WorkingDir: "/",
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, fmt.Errorf("create bridge: %w", err)
	}
	// The client heeds ctx until it has dialled and not while it waits for the answer, so the
	// end of ctx closes the connection: that ends the wait and leaves nothing open.
	d := &dialled{}
	stop := context.AfterFunc(ctx, d.close)
	resp, err := e.cli.ContainerExecAttach(context.WithValue(ctx, dialledKey{}, d), ex.ID, container.ExecAttachOptions{})
	if err == nil && !stop() {
		resp.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("attach bridge: %w", errors.Join(ctx.Err(), err))
	}
	return e.demux(resp, id), nil
}

// dialledKey carries a *dialled to the client's dialer.
type dialledKey struct{}

// dialled is the connection of one attach, so that it can be closed while the client waits.
type dialled struct {
	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

func (d *dialled) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.conn != nil {
		d.conn.Close()
	}
}

func (d *dialled) take(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = c
	if d.closed {
		c.Close()
	}
}

// dialer connects to the engine's socket, whatever address the client thinks of.
func dialer(socket string) func(ctx context.Context, _, _ string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var nd net.Dialer
		c, err := nd.DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if d, ok := ctx.Value(dialledKey{}).(*dialled); ok {
			d.take(c)
		}
		return c, nil
	}
}

type bridge struct {
	resp types.HijackedResponse
	out  *io.PipeReader
	once sync.Once
}

func (e *Engine) demux(resp types.HijackedResponse, id string) *bridge {
	pr, pw := io.Pipe()
	b := &bridge{resp: resp, out: pr}
	go func() {
		stderr := &head{left: stderrBytes}
		_, err := stdcopy.StdCopy(pw, stderr, resp.Reader)
		if err == nil {
			err = io.EOF
		}
		pw.CloseWithError(err)
		if len(stderr.text) > 0 {
			e.cfg.Log.Warn("bridge said", "container", id, "stderr", string(stderr.text))
		}
	}()
	return b
}

func (b *bridge) Read(p []byte) (int, error)  { return b.out.Read(p) }
func (b *bridge) Write(p []byte) (int, error) { return b.resp.Conn.Write(p) }

// Close ends the helper and the copying goroutine.
func (b *bridge) Close() error {
	b.once.Do(func() {
		b.resp.Close()
		b.out.Close()
	})
	return nil
}

// head keeps the first bytes and counts nothing else.
type head struct {
	text []byte
	left int
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.left)
	h.text = append(h.text, p[:n]...)
	h.left -= n
	return len(p), nil
}
