// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"errors"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

func TestSuperblocks(t *testing.T) {
	// Groups 0, 1, 3, 5, 7, 9, 25, 27, 49, 81 hold copies.
	for groups, want := range map[int64]int64{1: 1, 2: 2, 3: 2, 4: 3, 6: 4, 8: 5, 9: 5, 10: 6, 26: 7, 28: 8, 50: 9, 82: 10} {
		if got := superblocks(groups); got != want {
			t.Errorf("%d groups: %d copies, want %d", groups, got, want)
		}
	}
}

func TestGeometryHoldsTheRequest(t *testing.T) {
	for _, bytes := range []int64{MinBytes, MinBytes + 1, 127 << 20, 128 << 20, 129 << 20, 1 << 30, 16 << 30, MaxBytes} {
		for _, inodes := range []int64{MinInodes, 1000, bytes / 16384, bytes / blockSize} {
			if inodes < MinInodes {
				continue
			}
			g, err := planGeometry(bytes, inodes)
			if err != nil {
				t.Errorf("%d, %d: %v", bytes, inodes, err)
				continue
			}
			groups := ceil(g.blocks, blocksPerGroup)
			switch excess := g.inodes() - inodes; {
			case g.bound*blockSize < bytes || g.bound*blockSize >= bytes+blockSize:
				t.Errorf("%d, %d: bound of %d blocks", bytes, inodes, g.bound)
			case g.blocks <= g.bound:
				t.Errorf("%d, %d: %d blocks", bytes, inodes, g.blocks)
			case excess < 0 || excess >= inodesPerBlock*groups:
				t.Errorf("%d, %d: %d inodes", bytes, inodes, g.inodes())
			case excess > 0 && g.firstInode != g.totalInodes/groups:
				t.Errorf("%d, %d: %d inodes too many although the first group has room", bytes, inodes, excess)
			case g.firstInode <= reservedInodes:
				t.Errorf("%d, %d: first inode %d", bytes, inodes, g.firstInode)
			}
		}
	}
	for _, s := range [][2]int64{{0, 16}, {MinBytes - 1, 16}, {MaxBytes + 1, 16}, {MinBytes, 15}, {MinBytes, 4096}, {-1, -1}} {
		if _, err := planGeometry(s[0], s[1]); !errors.Is(err, ErrSpec) {
			t.Errorf("%v: got %v, want ErrSpec", s, err)
		}
	}
}

// FuzzRecord: refuse, or have every member in range.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"workspaceId":"w","bytes":1,"inodes":1,"ready":true}`))
	f.Add([]byte(`{"workspaceId":"../w","bytes":1,"inodes":1,"ready":true}`))
	f.Add([]byte(`{"workspaceId":"w","bytes":-1,"inodes":1}`))
	f.Add([]byte(`{"workspaceId":"w","other":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := durable.Decode[record](b); err == nil && (!durable.ValidID(r.WorkspaceID) || r.Bytes <= 0 || r.Inodes <= 0) {
			t.Errorf("accepted %+v", r)
		}
	})
}
