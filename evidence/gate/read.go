// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/archive"
)

// ReadBundle reads the bundle at path, a directory or a file that package archive wrote. Of an archive
// everything is read, whatever depth asks for. What makes it inadmissible is a *evidence.Denied of step 1;
// other errors are of the reading.
func ReadBundle(path string, depth evidence.Depth) (_ *evidence.Bundle, err error) {
	// A FIFO must not hold the gate up, and what was opened is looked at, not the name.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("open bundle: %w", err)
	case st.IsDir():
		return evidence.ReadBundle(path, depth)
	case !st.Mode().IsRegular():
		return nil, &evidence.Denied{Reason: evidence.ReasonFileKind, Detail: fmt.Sprintf("%q is %s", path, st.Mode())}
	}
	return archive.Read(bufio.NewReaderSize(f, 1<<20))
}
