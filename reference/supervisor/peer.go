// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peer is what the kernel recorded of the other end at connect(2), unix(7) SO_PEERCRED.
type peer struct {
	pid      int32
	uid, gid uint32
	start    uint64 // of the process that has the pid after accept; 0 when unreadable
}

// errPeer carries the reason of a refusal.
type errPeer string

func (e errPeer) Error() string { return "peer refused: " + string(e) }

// peerOf reads the connect-time credentials of c.
func peerOf(c *net.UnixConn) (peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	if credErr != nil {
		return peer{}, fmt.Errorf("peer credentials: %w", credErr)
	}
	return peer{pid: cred.Pid, uid: cred.Uid, gid: cred.Gid}, nil
}

// checkPeer decides before a byte is read. Only uid 0 and gid 0 may speak. The pid can refuse and
// never accept: a peer that is gone by now is refused, one that looks alive has proven nothing,
// since its pid may be another's. Liveness is the challenge's to prove.
func checkPeer(c *net.UnixConn) (peer, error) {
	p, err := peerOf(c)
	switch {
	case err != nil:
		return p, errPeer("cred")
	case p.uid != 0:
		return p, errPeer("uid")
	case p.gid != 0:
		return p, errPeer("gid")
	case p.pid <= 0: // outside this pid namespace, or gone: some sentries say 0 for a dead peer
		return p, errPeer("peer")
	}
	if err := unix.Kill(int(p.pid), 0); errors.Is(err, unix.ESRCH) {
		return p, errPeer("peer")
	}
	if st, err := readStat(int(p.pid)); err == nil {
		p.start = st.start
		if st.dead() {
			return p, errPeer("peer")
		}
	}
	return p, nil
}

// same says whether the process that had the peer's pid at accept still has it. It is asked once
// more when the first request was proven, as a further ground for refusal.
func (p peer) same() bool {
	st, err := readStat(int(p.pid))
	return err == nil && !st.dead() && (p.start == 0 || st.start == p.start)
}
