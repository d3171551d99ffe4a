// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listen binds a unix socket that only this user can connect to. A socket that nobody listens
// on any more is replaced; a live one, or another kind of file, is an error.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("inspect socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	default:
		d := net.Dialer{Timeout: time.Second}
		c, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("%s is in use: %w", path, unix.EADDRINUSE), c.Close())
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("probe socket: %w", err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove stale socket: %w", err)
		}
	}
	// unix(7): on Linux bind(2) gives the new inode the mode of the socket, less the umask. So
	// there is no moment in which the path is open to others, and no umask to change.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	st, err := os.Lstat(path)
	if err == nil && st.Mode().Perm() != 0o600 {
		err = fmt.Errorf("socket has mode %#o", st.Mode().Perm())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("check socket: %w", err), l.Close())
	}
	return l, nil
}
