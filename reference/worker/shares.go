// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"sync"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Bounds of file operations in progress. Each may keep a thread of the kernel, 1 MiB of memory and
// four descriptors for as long as its peer lets it wait. So all of them together take 64 threads of
// the 1,024 tasks that the unit allows, and nobody may use up the threads that Go itself needs.
const (
	maxFileOps             = 64
	maxFileOpsPerWorkspace = maxFileOps / 4
)

// minOutputs is for how many outputs of the largest size there is room at least besides the share of one
// workspace, so that a worker of few commands still has room for answers that are not read.
const minOutputs = 16

// shares bounds what requests hold of one kind, in all and for each workspace, so that none takes what
// the others need. A workspace has one sandbox at a time, and its name is in the capability: nobody
// uses up the share of another. Nothing waits for room.
type shares struct {
	what       string // for the log
	most, each int64  // in all, and for one workspace

	mu   sync.Mutex
	used int64            // guarded by mu
	by   map[string]int64 // guarded by mu; of each workspace that holds some
}

func newShares(what string, most, each int64) *shares {
	return &shares{what: what, most: most, each: each, by: map[string]int64{}}
}

// outputShares are for the output of commands, in outputs of the largest size: one for each command that may
// run. One workspace has a quarter of them, and at least one more than its sandbox runs commands, so that it can be
// told of one that it has cancelled. Its share comes on top of the whole: what it leaves unread keeps none of
// the others from running all that may run.
func outputShares(l api.Limits) *shares {
	most := max(l.Execs, minOutputs)
	each := max(most/4, l.ExecsPerSandbox+1)
	return newShares("bytes of output", (most+each)*api.MaxOutputBytes, each*api.MaxOutputBytes)
}

// take takes n for workspace until give is called, once. Without room the error is UNAVAILABLE.
func (s *shares) take(workspace string, n int64) (give func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used+n > s.most || s.by[workspace]+n > s.each {
		return nil, api.E(api.Unavailable, fmt.Errorf("too many %s in progress: %d of %d, of this workspace %d of %d", s.what, s.used, s.most, s.by[workspace], s.each))
	}
	s.used += n
	s.by[workspace] += n
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.used -= n
		if s.by[workspace] -= n; s.by[workspace] == 0 {
			delete(s.by, workspace)
		}
	}, nil
}
