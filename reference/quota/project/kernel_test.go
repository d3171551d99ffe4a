// SPDX-License-Identifier: Apache-2.0

package project

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a C compiler says of linux/quota.h, linux/dqblk_xfs.h and linux/fs.h on x86-64 and arm64.
func TestLayoutsAreTheHeaders(t *testing.T) {
	var (
		x fsxattr
		a fileAttr
		v ifNextDqblk
		d fsDiskQuota
		s fsQuotaStatv
	)
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"struct fsxattr", unsafe.Sizeof(x), 28}, {"fsx_projid", unsafe.Offsetof(x.projid), 12},
		{"struct file_attr", unsafe.Sizeof(a), 24}, {"fa_projid", unsafe.Offsetof(a.projid), 16},
		{"struct if_nextdqblk", unsafe.Sizeof(v), 72}, {"dqb_bhardlimit", unsafe.Offsetof(v.bhard), 0}, {"dqb_curspace", unsafe.Offsetof(v.space), 16},
		{"dqb_ihardlimit", unsafe.Offsetof(v.ihard), 24}, {"dqb_curinodes", unsafe.Offsetof(v.inodes), 40},
		{"dqb_valid", unsafe.Offsetof(v.valid), 64}, {"dqb_id", unsafe.Offsetof(v.id), 68},
		{"struct fs_disk_quota", unsafe.Sizeof(d), 112}, {"d_fieldmask", unsafe.Offsetof(d.fieldmask), 2}, {"d_id", unsafe.Offsetof(d.id), 4},
		{"d_blk_hardlimit", unsafe.Offsetof(d.bhard), 8}, {"d_ino_hardlimit", unsafe.Offsetof(d.ihard), 24}, {"d_bcount", unsafe.Offsetof(d.blocks), 40},
		{"d_icount", unsafe.Offsetof(d.inodes), 48}, {"d_rtb_hardlimit", unsafe.Offsetof(d.rtbhard), 72}, {"d_rtbtimer", unsafe.Offsetof(d.rtbtimer), 96},
		{"d_padding4", unsafe.Offsetof(d.pad4), 104},
		{"struct fs_quota_statv", unsafe.Sizeof(s), 160}, {"qs_flags", unsafe.Offsetof(s.flags), 2}, {"qs_pquota", unsafe.Offsetof(s.project), 56},
		{"qs_btimelimit", unsafe.Offsetof(s.btimelimit), 80}, {"qs_pad2", unsafe.Offsetof(s.pad2), 104},
		{"FS_IOC_FSGETXATTR", fsIocFSGetXattr, 0x801c581f}, {"FS_IOC_FSSETXATTR", fsIocFSSetXattr, 0x401c5820},
		{"QCMD(Q_GETNEXTQUOTA, PRJQUOTA)", qGetNextQuota, 0x80000902}, {"QCMD(Q_GETQUOTA, PRJQUOTA)", qGetQuota, 0x80000702},
		{"QCMD(Q_SETQUOTA, PRJQUOTA)", qSetQuota, 0x80000802}, {"QCMD(Q_XGETQUOTA, PRJQUOTA)", qXGetQuota, 0x580302},
		{"QCMD(Q_XSETQLIM, PRJQUOTA)", qXSetQLim, 0x580402}, {"QCMD(Q_XGETQSTATV, PRJQUOTA)", qXGetQStatV, 0x580802},
		{"QCMD(Q_XGETNEXTQUOTA, PRJQUOTA)", qXGetNextQuota, 0x580902},
		{"QIF_BLIMITS|QIF_ILIMITS", qifBlockLimits | qifInodeLimits, 5}, {"FS_DQ_ISOFT|FS_DQ_IHARD|FS_DQ_BSOFT|FS_DQ_BHARD", dqLimits, 15},
	} {
		if tt.got != tt.want {
			t.Errorf("%s is %#x, the headers have %#x", tt.name, tt.got, tt.want)
		}
	}
}

// A record of each kernel structure as bytes, so that no member is read from its neighbour's place.
func TestQuotaIsReadFromTheRightMembers(t *testing.T) {
	v := ifNextDqblk{bhard: 3, bsoft: 4, space: 5, ihard: 6, isoft: 7, inodes: 8, id: 9}
	if got := v.quota(); got != (Quota{ID: 9, Bytes: 5, BytesLimit: 3 * 1024, Inodes: 8, InodesLimit: 6}) {
		t.Errorf("VFS: %+v", got)
	}
	d := fsDiskQuota{id: 9, bhard: 3, bsoft: 4, ihard: 6, isoft: 7, blocks: 5, inodes: 8}
	if got := d.quota(); got != (Quota{ID: 9, Bytes: 5 * 512, BytesLimit: 3 * 512, Inodes: 8, InodesLimit: 6}) {
		t.Errorf("XFS: %+v", got)
	}
}

// TestUnenforcedIsToldByTheKernel: the volume has no quota, whatever the kernel could do.
func TestUnenforcedIsToldByTheKernel(t *testing.T) {
	if os.Getenv(ownVolume) != "" {
		t.Skip("the volume is somebody's own")
	}
	for _, dir := range []string{volume, "/proc"} {
		st, err := Ask(dir)
		if st.Enforced || st.Accounted || err != nil && !errors.Is(err, ErrNotEnforced) {
			t.Errorf("%s: %+v, %v", dir, st, err)
		}
	}
	if st, err := Ask(volume); err != nil || st.Filesystem != "xfs" {
		t.Errorf("%+v, %v", st, err)
	}
	store := newDir(t) + "/store"
	if _, err := Open(store); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("a store without enforcement: %v", err)
	}
	if _, err := os.Lstat(store); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
	d, err := os.Open(volume)
	must(t, err)
	defer d.Close()
	var k quotactl
	_, qerr := k.quota(int(d.Fd()), newID())
	_, nerr := k.next(int(d.Fd()), newID())
	for _, err := range []error{qerr, nerr, k.setLimits(int(d.Fd()), newID(), 1<<20, 16)} {
		if !errors.Is(err, ErrNotEnforced) && !errors.Is(err, unix.EINVAL) {
			t.Errorf("got %v", err)
		}
	}
	if err := k.setLimits(int(d.Fd()), 1, 1<<63, 0); !errors.Is(err, ErrSpec) {
		t.Errorf("a limit that overflows: %v", err)
	}
}
