// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// dialWithin bounds the wait for a supervisor that is still starting.
const dialWithin = 5 * time.Second

// ErrImpostor says that whoever listens at the socket is not PID 1 with uid 0 and gid 0.
var ErrImpostor = errors.New("peer is not the supervisor")

// Bridge carries bytes between in, out and the control socket, and understands none of them. It
// sends nothing before the kernel has said that the listener is PID 1, uid 0 and gid 0. It
// returns when either side ends; the caller must then exit, which ends the other.
func Bridge(in io.Reader, out io.Writer) error {
	if err := harden(warmBridge); err != nil {
		return err
	}
	c, err := dial(Socket, dialWithin)
	if err != nil {
		return err
	}
	defer c.Close()
	ended := make(chan error, 2)
	go func() {
		ended <- carry(c, in)
	}()
	go func() {
		_, err := io.Copy(out, onlyReader{c})
		ended <- err
	}()
	return <-ended
}

// carry copies what the worker sends, and keeps none of it: it may hold a secret.
func carry(w io.Writer, r io.Reader) error {
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		if n > 0 {
			_, werr := w.Write(b[:n])
			clear(b[:n])
			err = errors.Join(werr, err)
		}
		if err != nil {
			return err
		}
	}
}

// onlyReader hides WriteTo: splice(2) out of a socket is not what every sentry does well, and the
// copies are small.
type onlyReader struct{ io.Reader }

// dial connects and verifies the listener. Only absence is retried.
func dial(path string, within time.Duration) (*net.UnixConn, error) {
	deadline := time.Now().Add(within)
	for {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			if err := checkServer(c); err != nil {
				c.Close()
				return nil, err
			}
			return c, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(deadline) {
			return nil, fmt.Errorf("connect to supervisor: %w", err)
		}
		time.Sleep(5 * time.Millisecond) // a path has no event to wait for that works in every sentry
	}
}

func checkServer(c *net.UnixConn) error {
	p, err := peerOf(c)
	if err != nil {
		return err
	}
	if p.pid != 1 || p.uid != 0 || p.gid != 0 {
		return fmt.Errorf("%w: pid %d uid %d gid %d", ErrImpostor, p.pid, p.uid, p.gid)
	}
	return nil
}

// Dial opens an authenticated client on the control socket of this sandbox, for diagnosis by
// root in it.
func Dial() (net.Conn, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("the control socket is root's")
	}
	return dial(Socket, control.FirstRequestWithin)
}
