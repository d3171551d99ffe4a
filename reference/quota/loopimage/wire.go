// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"errors"
	"fmt"
)

// Sentinels. Each has an exit code of hallmark-quota, so that they survive the process border.
var (
	ErrUsage        = errors.New("wrong arguments")
	ErrReserve      = errors.New("the host reserve does not allow this image")
	ErrBusy         = errors.New("the image is in use")
	ErrNotFound     = errors.New("no such workspace image")
	ErrMissingMount = errors.New("the workspace is not mounted as expected")
	ErrSpec         = errors.New("the requested bounds are not possible")
	ErrMismatch     = errors.New("the workspace has other bounds")
	ErrCorrupt      = errors.New("the image is damaged")
	ErrTool         = errors.New("a tool or kernel facility is missing")
)

// ExitInternal is the exit code of an error without a sentinel.
const ExitInternal = 1

var exits = []struct {
	err  error
	code int
}{
	{ErrUsage, 2}, {ErrReserve, 10}, {ErrBusy, 11}, {ErrNotFound, 12}, {ErrMissingMount, 13},
	{ErrSpec, 14}, {ErrMismatch, 15}, {ErrCorrupt, 16}, {ErrTool, 17},
}

// ExitCode returns the exit code of err; 0 for nil.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	for _, e := range exits {
		if errors.Is(err, e.err) {
			return e.code
		}
	}
	return ExitInternal
}

// FromExit returns an error that matches the sentinel of a non-zero exit code.
func FromExit(code int, message string) error {
	for _, e := range exits {
		if e.code == code {
			return &remoteError{message, e.err}
		}
	}
	return fmt.Errorf("exit code %d: %s", code, message)
}

// remoteError keeps the helper's sentence, which names the sentinel already.
type remoteError struct {
	message string
	kind    error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }

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
