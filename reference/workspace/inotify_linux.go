// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// watched is what is asked of a directory. It is given by descriptor, so a symlink is never
// met; IN_EXCL_UNLINK leaves out what happens to names that are gone.
const watched = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// Pairing of a rename's two events, inotify(7): they are usually adjacent, but others may
// come between, and the second may not be there yet when the first is read.
const (
	pairEvents = 64 // that may lie between
	pairWait   = 5 * time.Millisecond
)

// event is one struct inotify_event: wd i32, mask u32, cookie u32, len u32, name padded with
// NUL to len. The kernel wrote it.
type event struct {
	wd     int32
	mask   uint32
	cookie uint32
	name   string
}

func parseEvents(to []event, b []byte) []event {
	for len(b) >= unix.SizeofInotifyEvent {
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		name := b[unix.SizeofInotifyEvent:size]
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		to = append(to, event{
			wd: int32(binary.NativeEndian.Uint32(b)), mask: binary.NativeEndian.Uint32(b[4:]),
			cookie: binary.NativeEndian.Uint32(b[8:]), name: string(name),
		})
		b = b[size:]
	}
	return to
}

// readNow reads what is queued; 0 when nothing is.
func readNow(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		switch err {
		case nil:
			return n, nil
		case unix.EAGAIN:
			return 0, nil
		case unix.EINTR:
		default:
			return 0, classed("read events", err)
		}
	}
}

// addWatch watches the directory behind an O_PATH descriptor, whatever its name is now. The kernel
// asks for the right to read it, of the calling thread. An inode that is watched already
// keeps its watch descriptor, which so is its identity.
func addWatch(fd int, dir handle) (int32, error) {
	for {
		wd, err := unix.InotifyAddWatch(fd, "/proc/self/fd/"+strconv.Itoa(int(dir)), watched)
		if err != unix.EINTR {
			return int32(wd), err
		}
	}
}

// pair finds the second half of the rename whose first half has just been taken, and takes it out.
func (v *view) pair(cookie uint32) (event, bool) {
	for at, waited := v.next, false; ; {
		for ; at < len(v.events); at++ {
			if at >= v.next+pairEvents {
				return event{}, false
			}
			if e := v.events[at]; e.mask&unix.IN_MOVED_TO != 0 && e.cookie == cookie {
				v.events[at].mask = 0
				return e, true
			}
		}
		n, err := readNow(v.fd, v.buf)
		if n == 0 && err == nil && !waited {
			// Nothing is queued, so this costs no backlog.
			waited = true
			p := []unix.PollFd{{Fd: int32(v.fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(p, int(pairWait.Milliseconds()))
			n, err = readNow(v.fd, v.buf)
		}
		if n == 0 || err != nil { // the error will be met again
			return event{}, false
		}
		v.events = parseEvents(v.events, v.buf[:n])
	}
}

// threadTime is the CPU time of the calling thread, clock_gettime(2).
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // fails for a wrong clock only
	return time.Duration(ts.Nano())
}
