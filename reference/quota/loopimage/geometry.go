// SPDX-License-Identifier: Apache-2.0

package loopimage

import "fmt"

// Constants of the one geometry that this package makes (mkfs.ext4(8), -b 4096 -I 256,
// 32-byte group descriptors because the 64bit feature is off).
const (
	blockSize      = 4096
	inodeSize      = 256
	blocksPerGroup = 8 * blockSize
	inodesPerBlock = blockSize / inodeSize
	descSize       = 32
	reservedInodes = 10 // EXT4_GOOD_OLD_FIRST_INO - 1
	minTail        = 64 // mke2fs drops a last group that has less than 50 blocks of its own

	// MinBytes and MaxBytes bound a request, inclusive. Below 4 MiB a journal does not fit.
	MinBytes = 4 << 20
	MaxBytes = 1 << 40
	// MinInodes bounds a request from below, inclusive.
	MinInodes = 16
)

// geometry is what mkfs is asked for and what it must have made.
type geometry struct {
	blocks      int64 // whole image
	bound       int64 // blocks that the tenant may allocate
	journalMiB  int64
	totalInodes int64
	firstInode  int64 // s_first_ino: inodes below are reserved
}

// inodes returns the number that the tenant can create.
func (g geometry) inodes() int64     { return g.totalInodes - g.firstInode + 1 }
func (g geometry) imageBytes() int64 { return g.blocks * blockSize }

func ceil(a, b int64) int64 { return (a + b - 1) / b }

// planGeometry computes the smallest image whose usable blocks and inodes reach the request.
func planGeometry(bytes, inodes int64) (geometry, error) {
	if bytes < MinBytes || bytes > MaxBytes {
		return geometry{}, fmt.Errorf("%w: %d bytes is not within %d and %d", ErrSpec, bytes, MinBytes, int64(MaxBytes))
	}
	if inodes < MinInodes || inodes > bytes/blockSize*2 {
		return geometry{}, fmt.Errorf("%w: %d inodes is not within %d and two per block", ErrSpec, inodes, MinInodes)
	}
	g := geometry{bound: ceil(bytes, blockSize), journalMiB: 4}
	if bytes >= 512<<20 {
		g.journalMiB = 16
	}
	var perGroup, groups int64
	// The overhead grows with the size, so iterate upwards to the fixed point.
	for g.blocks = g.bound; ; {
		groups = ceil(g.blocks, blocksPerGroup)
		perGroup = ceil(ceil(inodes+reservedInodes, groups), inodesPerBlock) * inodesPerBlock
		descs := ceil(groups*descSize, blockSize)
		over := g.journalMiB<<20/blockSize + groups*(2+perGroup/inodesPerBlock) + superblocks(groups)*(1+descs)
		pool := min((g.blocks+49)/50, 4096) // ext4_calculate_resv_clusters: 2 %, at most 4096
		need := g.bound + 1 + over + pool   // 1: the root directory's block
		tail := need % blocksPerGroup
		if least := 2 + perGroup/inodesPerBlock + 1 + descs + minTail; tail != 0 && tail < least {
			need += least - tail
		}
		if need <= g.blocks {
			break
		}
		g.blocks = need
	}
	if perGroup > blocksPerGroup {
		return geometry{}, fmt.Errorf("%w: more than %d inodes in each 128 MiB", ErrSpec, blocksPerGroup)
	}
	g.totalInodes = perGroup * groups
	// Reserved inodes beyond the first group are not accepted by the kernel (measured).
	g.firstInode = min(g.totalInodes-inodes+1, perGroup)
	return g, nil
}

// superblocks counts the groups with a superblock copy: 0, 1 and powers of 3, 5 and 7 (sparse_super).
func superblocks(groups int64) int64 {
	n := min(groups, 2)
	for _, base := range []int64{3, 5, 7} {
		for p := base; p < groups; p *= base {
			n++
		}
	}
	return n
}
