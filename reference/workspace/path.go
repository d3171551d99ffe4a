// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"fmt"
)

// MaxPath bounds a path in bytes, inclusive.
const MaxPath = 4096

// checkPath applies the path rules. What it accepts can still meet symlinks and mounts;
// the kernel refuses those.
func checkPath(path []byte) error {
	if len(path) == 0 || len(path) > MaxPath {
		return fmt.Errorf("%w: %d bytes", ErrUnsafe, len(path))
	}
	if bytes.IndexByte(path, 0) >= 0 {
		return fmt.Errorf("%w: NUL in it", ErrUnsafe)
	}
	for c := range bytes.SplitSeq(path, []byte{'/'}) {
		switch string(c) {
		case "":
			return fmt.Errorf("%w: empty component", ErrUnsafe)
		case ".", "..":
			return fmt.Errorf("%w: component %q", ErrUnsafe, c)
		}
	}
	return nil
}

// split returns parent and leaf of a checked path; parent is "." for the workspace itself.
func split(path []byte) (parent, leaf string) {
	if i := bytes.LastIndexByte(path, '/'); i >= 0 {
		return string(path[:i]), string(path[i+1:])
	}
	return ".", string(path)
}
