// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// maxPipe bounds the last drain where the kernel does not say what a pipe holds: the largest pipe
// that an unprivileged process can make, pipe(7).
const maxPipe = 1 << 20

// budget is shared by both streams. What is beyond it is counted and dropped.
type budget struct {
	mu      sync.Mutex
	left    int64
	kept    [2]uint64
	dropped [2]uint64
}

// take splits n bytes of stream i (0 or 1) into what is kept and what is not.
func (b *budget) take(i, n int) (keep int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	keep = int(min(int64(n), b.left))
	b.left -= int64(keep)
	b.kept[i] += uint64(keep)
	b.dropped[i] += uint64(n - keep)
	return keep
}

// collector reads one stream with constant memory.
type collector struct {
	stream int // 0 stdout, 1 stderr
	pipe   *os.File
	budget *budget
	emit   func(f control.Frame)
	buf    []byte // 1 + control.OutputMax
	done   chan struct{}
}

// run reads until end of file, or until finish sets a deadline; then it takes what the pipe held at
// that time and no more. A writer that survives elsewhere (the tenant can pass descriptors to
// another invocation) can neither delay nor extend the outcome.
func (c *collector) run() {
	defer close(c.done)
	defer c.pipe.Close()
	for {
		n, err := c.pipe.Read(c.buf[1:])
		c.take(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.drain()
			return
		}
		if err != nil {
			return
		}
	}
}

// finish is called once the tree is dead.
func (c *collector) finish() {
	c.pipe.SetReadDeadline(time.Now())
	<-c.done
}

func (c *collector) drain() {
	raw, err := c.pipe.SyscallConn()
	if err != nil {
		return
	}
	// The descriptor is non-blocking, so these reads return at once.
	raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		if err != nil {
			left = maxPipe
		}
		for left > 0 {
			n, err := unix.Read(int(fd), c.buf[1:1+min(left, control.OutputMax)])
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return
			}
			c.take(n)
			left -= n
		}
	})
}

func (c *collector) take(n int) {
	if n <= 0 {
		return
	}
	if keep := c.budget.take(c.stream, n); keep > 0 {
		c.buf[0] = byte(c.stream + 1)
		c.emit(control.Frame{Type: control.Output, Payload: c.buf[:1+keep]})
	}
}

// pipe returns a pipe whose tenant end blocks and whose own end uses the poller. own is "r" or
// "w". tenant must be closed by the caller after the spawn.
func pipe(own string) (mine *os.File, tenant int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	m, t := p[0], p[1]
	if own == "w" {
		m, t = t, m
	}
	if err := unix.SetNonblock(m, true); err != nil { // before NewFile, which then polls it
		unix.Close(m)
		unix.Close(t)
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(m), "pipe"), t, nil
}
