// SPDX-License-Identifier: Apache-2.0

package project

import "github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"

// The sentinels that this package returns.
var (
	ErrUsage        = exitcode.ErrUsage
	ErrReserve      = exitcode.ErrReserve
	ErrBusy         = exitcode.ErrBusy
	ErrNotFound     = exitcode.ErrNotFound
	ErrSpec         = exitcode.ErrSpec
	ErrMismatch     = exitcode.ErrMismatch
	ErrCorrupt      = exitcode.ErrCorrupt
	ErrTool         = exitcode.ErrTool
	ErrNotEnforced  = exitcode.ErrNotEnforced  // the kernel says that nothing bounds the workspace
	ErrChanged      = exitcode.ErrChanged      // somebody works in the tree; try again when nobody does
	ErrOutsideLink  = exitcode.ErrOutsideLink  // repair makes a copy of it
	ErrForeign      = exitcode.ErrForeign      // a mount point, a device, or a file that the kernel keeps as it is
	ErrExhausted    = exitcode.ErrExhausted    // the range of ids is used up
	ErrMissingMount = exitcode.ErrMissingMount // the filesystem is not mounted as workspaces need it
	ErrTooLarge     = exitcode.ErrTooLarge     // more inodes than a walk remembers, or more than the bounds
)
