// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// secretFD is where the leader of a secret-bearing invocation reads its frame, and nobody else.
const secretFD = 3

// deliverWithin bounds the writing of the frame. A frame can be larger than a pipe, 64 KiB, pipe(7): then its
// reader has to read. What it has not taken by then it does not get, and sees a frame that is cut.
const deliverWithin = 5 * time.Second

// secretHome is HOME of a secret-bearing invocation: on the tmpfs of /tmp, made by the tenant itself
// in a container in which nobody has run before. What an earlier invocation planted in the workspace
// is not found there.
const secretHome = "/tmp/home"

// secretPipe is the keeper's end of descriptor 3. A nil one is none.
type secretPipe struct {
	w    *os.File
	b    control.Secret
	done chan struct{} // nil until deliver
}

// openSecret makes the pipe of a secret-bearing invocation; fd is the reading end, the caller's.
func openSecret(b control.Secret) (p *secretPipe, fd int, err error) {
	if len(b) == 0 {
		return nil, -1, nil
	}
	w, fd, err := pipe("w")
	if err != nil {
		clear(b)
		return nil, -1, err
	}
	return &secretPipe{w: w, b: b}, fd, nil
}

// deliver begins to write. It never blocks its caller.
func (p *secretPipe) deliver() {
	if p == nil {
		return
	}
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		defer clear(p.b)
		defer p.w.Close()
		p.w.SetWriteDeadline(time.Now().Add(deliverWithin))
		p.w.Write(p.b) // a reader that is gone, or late, has what it has
	}()
}

// end stops the delivery, if it has not ended, and zeroes the frame. It may be repeated.
func (p *secretPipe) end() {
	if p == nil {
		return
	}
	p.w.Close() // unblocks a write
	if p.done != nil {
		<-p.done
	}
	clear(p.b)
}

// passSecret lets descriptor 3 through the next execve(2), and that alone.
func passSecret() error {
	var st unix.Stat_t
	if err := unix.Fstat(secretFD, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errors.New("descriptor 3 is no pipe")
	}
	_, err := unix.FcntlInt(secretFD, unix.F_SETFD, 0)
	return err
}

// makeSecretHome makes [secretHome] with the tenant's authority. It must not be there.
func makeSecretHome() error {
	var fs unix.Statfs_t
	if err := unix.Statfs("/tmp", &fs); err != nil {
		return err
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return unix.ENODEV
	}
	return unix.Mkdir(secretHome, 0o700)
}
