// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// maxPipe bounds the last drain where the kernel does not say what a pipe holds: the largest pipe
// that an unprivileged process can make, pipe(7).
const maxPipe = 1 << 20

// A read of less than few bytes is followed by a pause, unless somebody else waits: who writes a byte at a
// time is then read 500 times a second, and not once for each byte, which costs a frame in every hand
// between here and the worker. The first bytes after a silence leave at once, and so do the last.
const (
	few   = 4 << 10
	pause = 2 * time.Millisecond
)

// budget is shared by both streams. What is beyond it is counted and dropped.
type budget struct {
	left    int64
	kept    [2]uint64
	dropped [2]uint64
}

// take splits n bytes of stream i (0 or 1) into what is kept and what is not.
func (b *budget) take(i, n int) (keep int) {
	keep = int(min(int64(n), b.left))
	b.left -= int64(keep)
	b.kept[i] += uint64(keep)
	b.dropped[i] += uint64(n - keep)
	return keep
}

// watch tells which of a few descriptors came to hold something, in that order. It is made once and
// serves one collector after the other.
//
// Go's own poller wakes readers in an order of its own. Where both streams hold something, the budget
// must go to the one that was written to first, so the kernel is asked: its list of ready descriptors
// grows at one end and is given out from the other, and with EPOLLET one stands in it only for what came
// since it was given out last. The man page promises no more than that nobody starves, epoll_wait(2):
// where a kernel has another order, that is still so.
type watch struct {
	epoll *os.File // which Go's poller waits for
	raw   syscall.RawConn
	stop  int // eventfd(2)
}

// ready is a descriptor of a watch by its name. With last nothing more comes after what it holds: it is
// not given out again.
type ready struct {
	name int
	last bool
}

// stopped is the name of the descriptor that ends a collector; 0 and 1 are the streams.
const stopped = 2

func newWatch() (*watch, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil { // before NewFile, which then polls it
		unix.Close(ep)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &watch{epoll: os.NewFile(uintptr(ep), "epoll")}
	if w.raw, err = w.epoll.SyscallConn(); err != nil {
		w.epoll.Close()
		return nil, err
	}
	if w.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.epoll.Close()
		return nil, os.NewSyscallError("eventfd2", err)
	}
	if err := w.add(w.stop, stopped); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *watch) close() {
	w.epoll.Close()
	unix.Close(w.stop)
}

// add watches fd until it is closed.
func (w *watch) add(fd, name int) (err error) {
	cerr := w.raw.Control(func(ep uintptr) {
		err = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(name)})
	})
	return errors.Join(cerr, os.NewSyscallError("epoll_ctl", err))
}

// next appends to queue what came to hold something since the last call. Without wait it may be
// nothing.
func (w *watch) next(queue []ready, wait bool) ([]ready, error) {
	var events [stopped + 1]unix.EpollEvent
	var n int
	var err error
	rerr := w.raw.Read(func(ep uintptr) bool {
		for {
			if n, err = unix.EpollWait(int(ep), events[:], 0); err != unix.EINTR {
				return n != 0 || !wait
			}
		}
	})
	for _, e := range events[:max(n, 0)] {
		r := ready{int(e.Fd), e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0}
		if at := slices.IndexFunc(queue, func(q ready) bool { return q.name == r.name }); at < 0 {
			queue = append(queue, r)
		} else {
			queue[at].last = queue[at].last || r.last
		}
	}
	return queue, errors.Join(rerr, os.NewSyscallError("epoll_wait", err))
}

// collector reads both streams of one command with constant memory, in the order in which they came to
// hold something.
type collector struct {
	watch  *watch
	pipes  [2]int // the reading ends, non-blocking; -1 after its end
	budget budget // good to read after done
	emit   func(f control.Frame)
	buf    []byte        // 1 + control.OutputMax
	over   chan struct{} // the tree is dead
	done   chan struct{}
}

// collect begins to read, and owns the pipes from then on. On an error it has closed them.
func collect(w *watch, pipes [2]int, limit int64, emit func(control.Frame), buf []byte) (*collector, error) {
	for i, fd := range pipes {
		if err := w.add(fd, i); err != nil {
			unix.Close(pipes[0])
			unix.Close(pipes[1])
			return nil, err
		}
	}
	c := &collector{watch: w, pipes: pipes, budget: budget{left: limit}, emit: emit, buf: buf, over: make(chan struct{}), done: make(chan struct{})}
	go c.run()
	return c, nil
}

// run reads until both have ended, or until finish; then it takes what the pipes held at that time and
// no more. A writer that survives elsewhere (the tenant can pass descriptors to another invocation) can
// neither delay nor extend the outcome.
func (c *collector) run() {
	defer close(c.done)
	defer c.end(0)
	defer c.end(1)
	rest := time.NewTimer(pause)
	defer rest.Stop()
	var queue []ready
	for c.pipes != [2]int{-1, -1} {
		var err error
		if queue, err = c.watch.next(queue, len(queue) == 0); err != nil {
			break // of a descriptor of our own: nothing but the drain is left
		}
		if len(queue) == 0 {
			continue
		}
		r := queue[0]
		queue = queue[1:]
		if r.name == stopped {
			break
		}
		// Each has its turn. A read that fills the buffer may have left something, epoll(7): it comes
		// again, after the others.
		n := c.read(r.name, control.OutputMax)
		if n == control.OutputMax || n > 0 && r.last {
			queue = append(queue, r)
		}
		if n > 0 && n < few && len(queue) == 0 {
			rest.Reset(pause)
			select {
			case <-rest.C:
			case <-c.over:
			}
		}
	}
	for _, r := range append(queue, ready{name: 0}, ready{name: 1}) {
		if r.name != stopped {
			c.drain(r.name)
		}
	}
}

// finish is called once the tree is dead.
func (c *collector) finish() {
	close(c.over)
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(c.watch.stop, one[:])
	<-c.done
	unix.Read(c.watch.stop, one[:]) // for the next collector
}

// read takes at most limit bytes of stream i, without waiting, and returns how many.
func (c *collector) read(i, limit int) int {
	for c.pipes[i] >= 0 {
		n, err := unix.Read(c.pipes[i], c.buf[1:1+min(limit, control.OutputMax)])
		switch {
		case err == unix.EINTR:
			continue
		case n > 0:
			c.take(i, n)
			return n
		case err != unix.EAGAIN: // its end
			c.end(i)
		}
		break
	}
	return 0
}

// end closes the pipe of stream i, once.
func (c *collector) end(i int) {
	if c.pipes[i] >= 0 {
		unix.Close(c.pipes[i])
		c.pipes[i] = -1
	}
}

// drain takes what stream i holds now, once: a second call finds it ended.
func (c *collector) drain(i int) {
	if c.pipes[i] < 0 {
		return
	}
	left, err := unix.IoctlGetInt(c.pipes[i], unix.TIOCINQ)
	if err != nil {
		left = maxPipe
	}
	for left > 0 {
		n := c.read(i, left)
		if n == 0 {
			break
		}
		left -= n
	}
	c.end(i)
}

func (c *collector) take(i, n int) {
	if keep := c.budget.take(i, n); keep > 0 {
		c.buf[0] = byte(i + 1)
		c.emit(control.Frame{Type: control.Output, Payload: c.buf[:1+keep]})
	}
}

// pipe is [rawPipe] whose own end uses Go's poller.
func pipe(own string) (mine *os.File, tenant int, err error) {
	m, t, err := rawPipe(own)
	if err != nil {
		return nil, -1, err
	}
	return os.NewFile(uintptr(m), "pipe"), t, nil
}

// rawPipe returns a pipe whose tenant end blocks and whose own end does not. own is "r" or "w". Both
// are the caller's to close, tenant after the spawn.
func rawPipe(own string) (mine, tenant int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, os.NewSyscallError("pipe2", err)
	}
	m, t := p[0], p[1]
	if own == "w" {
		m, t = t, m
	}
	if err := unix.SetNonblock(m, true); err != nil {
		unix.Close(m)
		unix.Close(t)
		return -1, -1, os.NewSyscallError("fcntl", err)
	}
	return m, t, nil
}
