// SPDX-License-Identifier: Apache-2.0

package project

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// State is what the kernel says of project quota on a filesystem.
type State struct {
	Filesystem string `json:"filesystem"` // ext4, xfs
	Accounted  bool   `json:"accounted"`  // usage is counted
	Enforced   bool   `json:"enforced"`   // limits hold
}

// Quota is what the kernel has of one project id. A limit of 0 is none.
type Quota struct {
	ID          uint32
	Bytes       uint64
	BytesLimit  uint64 // hard
	Inodes      uint64
	InodesLimit uint64 // hard
}

// kernel is project quota of one filesystem, by a descriptor on it.
type kernel interface {
	// state never returns an error for a filesystem without quota: nothing is enforced then.
	state(fd int) (State, error)
	quota(fd int, id uint32) (Quota, error)
	setLimits(fd int, id uint32, bytes, inodes uint64) error
	// next returns the first id from id on that the kernel has something of; ErrNotFound after the last.
	next(fd int, id uint32) (Quota, error)
	// statfs shows a directory that passes its project id on as large as its limits.
	statfs(fd int) (unix.Statfs_t, error)
}

// quotactl is quotactl_fd(2), Linux 5.14, which needs no path of a device or a mount.
type quotactl struct{}

// Commands of linux/quota.h and linux/dqblk_xfs.h, as QCMD(command, PRJQUOTA).
const (
	prjQuota = 2

	qGetNextQuota  = 0x800009<<8 | prjQuota
	qGetQuota      = 0x800007<<8 | prjQuota
	qSetQuota      = 0x800008<<8 | prjQuota
	qXGetQuota     = ('X'<<8+3)<<8 | prjQuota
	qXSetQLim      = ('X'<<8+4)<<8 | prjQuota
	qXGetQStatV    = ('X'<<8+8)<<8 | prjQuota
	qXGetNextQuota = ('X'<<8+9)<<8 | prjQuota

	statVersion1 = 1    // FS_QSTATV_VERSION1
	pdqAcct      = 0x10 // FS_QUOTA_PDQ_ACCT
	pdqEnfd      = 0x20 // FS_QUOTA_PDQ_ENFD

	qifBlockLimits = 1 // QIF_BLIMITS
	qifInodeLimits = 4 // QIF_ILIMITS
	dqblkUnit      = 1024

	dquotVersion  = 1      // FS_DQUOT_VERSION
	projQuota     = 2      // FS_PROJ_QUOTA
	dqLimits      = 0x000f // FS_DQ_ISOFT, FS_DQ_IHARD, FS_DQ_BSOFT, FS_DQ_BHARD
	basicBlock    = 512
	maxLimitBytes = 1 << 62 // so that no unit overflows
)

// ifNextDqblk is struct if_nextdqblk of linux/quota.h. struct if_dqblk is the same without the id.
type ifNextDqblk struct {
	bhard, bsoft uint64 // units of 1,024 bytes
	space        uint64 // bytes
	ihard, isoft uint64
	inodes       uint64
	btime, itime uint64
	valid        uint32
	id           uint32
}

// fsDiskQuota is struct fs_disk_quota of linux/dqblk_xfs.h. Blocks are of 512 bytes.
type fsDiskQuota struct {
	version, flags                       int8
	fieldmask                            uint16
	id                                   uint32
	bhard, bsoft                         uint64
	ihard, isoft                         uint64
	blocks, inodes                       uint64
	itimer, btimer                       int32
	iwarns, bwarns                       uint16
	itimerHi, btimerHi, rtbtimerHi, pad2 int8
	rtbhard, rtbsoft, rtblocks           uint64
	rtbtimer                             int32
	rtbwarns                             uint16
	pad3                                 int16
	pad4                                 [8]byte
}

// fsQfilestatv and fsQuotaStatv are struct fs_qfilestatv and struct fs_quota_statv of linux/dqblk_xfs.h.
type fsQfilestatv struct {
	ino, blocks  uint64
	extents, pad uint32
}

type fsQuotaStatv struct {
	version                              int8
	pad1                                 uint8
	flags                                uint16
	incore                               uint32
	user, group, project                 fsQfilestatv
	btimelimit, itimelimit, rtbtimelimit int32
	bwarnlimit, iwarnlimit, rtbwarnlimit uint16
	pad3                                 uint16
	pad4                                 uint32
	pad2                                 [7]uint64
}

func control(fd int, cmd uint32, id uint32, arg unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(cmd), uintptr(id), uintptr(arg), 0, 0)
		if e == 0 {
			return nil
		}
		if e != unix.EINTR {
			return e
		}
	}
}

// filesystem names the two that have project quota.
func filesystem(fd int) (string, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", fmt.Errorf("ask filesystem: %w", err)
	}
	switch st.Type {
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", nil
	}
	return "", fmt.Errorf("%w: filesystem type %#x; project quota is of ext4 and XFS", ErrNotEnforced, st.Type)
}

// state asks by Q_XGETQSTATV, which VFS quotas answer too: ext4 says there whether limits are
// enforced, which Q_GETINFO does not tell apart from counting.
func (quotactl) state(fd int) (State, error) {
	name, err := filesystem(fd)
	if err != nil {
		return State{}, err
	}
	s := fsQuotaStatv{version: statVersion1}
	switch err := control(fd, qXGetQStatV, 0, unsafe.Pointer(&s)); err {
	case nil:
	case unix.ENOSYS: // quotactl_fd(2) or the filesystem's quota is not built in
		return State{Filesystem: name}, nil
	case unix.ESRCH, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOTTY: // it is off
		return State{Filesystem: name}, nil
	default:
		return State{}, fmt.Errorf("ask for the state of quota: %w", err)
	}
	return State{Filesystem: name, Accounted: s.flags&pdqAcct != 0, Enforced: s.flags&pdqEnfd != 0}, nil
}

// fromVFS and fromXFS translate units.
func (q *ifNextDqblk) quota() Quota {
	return Quota{ID: q.id, Bytes: q.space, BytesLimit: q.bhard * dqblkUnit, Inodes: q.inodes, InodesLimit: q.ihard}
}

func (q *fsDiskQuota) quota() Quota {
	return Quota{ID: q.id, Bytes: q.blocks * basicBlock, BytesLimit: q.bhard * basicBlock, Inodes: q.inodes, InodesLimit: q.ihard}
}

// errNothing: the kernel has nothing of the id, or of a later one.
var errNothing = errors.New("nothing of it")

// ask sends the one of two commands that fd's filesystem knows.
func ask(fd int, xfs, vfs, id uint32) (q Quota, err error) {
	name, err := filesystem(fd)
	if err != nil {
		return Quota{}, err
	}
	if name == "xfs" {
		var x fsDiskQuota
		err = control(fd, xfs, id, unsafe.Pointer(&x))
		q = x.quota()
	} else {
		var v ifNextDqblk
		err = control(fd, vfs, id, unsafe.Pointer(&v))
		q = v.quota()
	}
	if err == unix.ENOENT {
		return Quota{}, errNothing
	}
	return q, asking(err)
}

// quota is 0 everywhere for an id that the kernel has nothing of.
func (quotactl) quota(fd int, id uint32) (Quota, error) {
	q, err := ask(fd, qXGetQuota, qGetQuota, id)
	if err == errNothing {
		err = nil
	}
	q.ID = id
	return q, err
}

func (quotactl) next(fd int, id uint32) (Quota, error) {
	q, err := ask(fd, qXGetNextQuota, qGetNextQuota, id)
	if err == errNothing {
		return q, fmt.Errorf("%w: no project id from %d on", ErrNotFound, id)
	}
	return q, err
}

func (quotactl) statfs(fd int) (st unix.Statfs_t, err error) {
	err = unix.Fstatfs(fd, &st)
	return st, err
}

// setLimits sets hard limits; 0 is none. Bytes are rounded up to the unit of the filesystem. Soft
// ones are none: they begin a time of grace, which nobody is promised.
func (quotactl) setLimits(fd int, id uint32, bytes, inodes uint64) error {
	if bytes > maxLimitBytes || inodes > maxLimitBytes {
		return fmt.Errorf("%w: %d bytes, %d inodes", ErrSpec, bytes, inodes)
	}
	name, err := filesystem(fd)
	if err != nil {
		return err
	}
	if name == "xfs" {
		x := fsDiskQuota{version: dquotVersion, flags: projQuota, fieldmask: dqLimits, id: id, bhard: (bytes + basicBlock - 1) / basicBlock, ihard: inodes}
		return asking(control(fd, qXSetQLim, id, unsafe.Pointer(&x)))
	}
	v := ifNextDqblk{valid: qifBlockLimits | qifInodeLimits, bhard: (bytes + dqblkUnit - 1) / dqblkUnit, ihard: inodes}
	return asking(control(fd, qSetQuota, id, unsafe.Pointer(&v)))
}

func asking(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: quotactl_fd: %w", ErrNotEnforced, err)
	}
	return fmt.Errorf("quotactl_fd: %w", err)
}
