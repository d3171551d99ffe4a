// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"sync"
)

// HostSocket is a listener with an abstract name in a network namespace of the host: who shares that
// namespace can connect, whatever it sees of the filesystem (unix(7), CVE-2020-15257). It counts who does.
type HostSocket struct {
	l net.Listener

	mu   sync.Mutex
	came int64
	wg   sync.WaitGroup
}

// ListenAbstract listens at name in the network namespace at path, "" for this process's own.
func ListenAbstract(namespace, name string) (*HostSocket, error) {
	h := &HostSocket{}
	if err := inNamespace(namespace, func() (err error) {
		h.l, err = net.Listen("unix", "@"+name)
		return err
	}); err != nil {
		return nil, fmt.Errorf("listen on the host: %w", err)
	}
	h.wg.Go(func() {
		for {
			c, err := h.l.Accept()
			if err != nil {
				return
			}
			c.Close()
			h.mu.Lock()
			h.came++
			h.mu.Unlock()
		}
	})
	return h, nil
}

// Came is how many have connected so far.
func (h *HostSocket) Came() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.came
}

// Close ends the listener.
func (h *HostSocket) Close() error {
	err := h.l.Close()
	h.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// SocketsAt lists the unix sockets at path on this host: path itself, or, when it is a folder, those up to
// depth levels below it. A path that is gone has none.
func SocketsAt(path string, depth int) ([]string, error) {
	var found []string
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.Type()&fs.ModeSocket != 0:
			found = append(found, p)
		case d.IsDir() && strings.Count(strings.TrimPrefix(p, path), "/") >= depth:
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for sockets: %w", err)
	}
	return found, nil
}
