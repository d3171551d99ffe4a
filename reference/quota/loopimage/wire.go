// SPDX-License-Identifier: Apache-2.0

package loopimage

import "github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"

// The sentinels that this package returns.
var (
	ErrUsage        = exitcode.ErrUsage
	ErrReserve      = exitcode.ErrReserve
	ErrBusy         = exitcode.ErrBusy
	ErrNotFound     = exitcode.ErrNotFound
	ErrMissingMount = exitcode.ErrMissingMount
	ErrSpec         = exitcode.ErrSpec
	ErrMismatch     = exitcode.ErrMismatch
	ErrCorrupt      = exitcode.ErrCorrupt
	ErrTool         = exitcode.ErrTool
)

// Created is what create prints.
type Created struct {
	New         bool  `json:"new"`
	Bytes       int64 `json:"bytes"`  // bound, a multiple of 4096
	Inodes      int64 `json:"inodes"` // bound
	ImageBytes  int64 `json:"imageBytes"`
	ImageBlocks int64 `json:"imageBlocks"` // st_blocks, units of 512 bytes
}

// Mounted is what mount and verify print: what the kernel says now.
type Mounted struct {
	Path      string `json:"path"`
	Major     uint32 `json:"major"`
	Minor     uint32 `json:"minor"`
	Blocks    uint64 `json:"blocks"` // statfs f_blocks
	BlockSize uint64 `json:"blockSize"`
	Files     uint64 `json:"files"` // statfs f_files, reserved inodes included
	Bytes     int64  `json:"bytes"` // bound
	Inodes    int64  `json:"inodes"`
}

// Used is what usage prints. Bytes may exceed BytesLimit by the kernel's pool, see the package doc.
type Used struct {
	Bytes       int64 `json:"bytes"`
	BytesLimit  int64 `json:"bytesLimit"`
	Inodes      int64 `json:"inodes"`
	InodesLimit int64 `json:"inodesLimit"`
}

// Listed is what list prints: every workspace with a record, in name order.
type Listed struct {
	WorkspaceIDs []string `json:"workspaceIds"`
}

// Done is what release and purge print.
type Done struct {
	Found bool `json:"found"` // something was there to release or purge
}
