// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"io"
	"maps"
	"sync"
	"time"
)

// audit counts and writes refusals. Writing never blocks a caller: nobody may be reading
// stderr.
type audit struct {
	mu     sync.Mutex
	counts map[string]uint64
	tokens int
	filled time.Time
	lines  chan string
}

const linesPerSecond = 10

func newAudit(w io.Writer) *audit {
	a := &audit{counts: map[string]uint64{}, tokens: linesPerSecond, filled: time.Now(), lines: make(chan string, 32)}
	for _, name := range []string{"accepted", "requests", "looks", "invocations", "keepers", "orphans-killed", "audit-dropped",
		"refused.cred", "refused.uid", "refused.gid", "refused.peer", "refused.busy", "refused.hello",
		"refused.silent", "refused.mac", "refused.frame", "refused.slow"} {
		a.counts[name] = 0
	}
	go func() {
		for line := range a.lines {
			io.WriteString(w, line)
		}
	}()
	return a
}

func (a *audit) count(name string, n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[name] += n
}

// refuse counts one refusal and writes its line, within the rate.
func (a *audit) refuse(reason string, p peer) {
	a.count("refused."+reason, 1)
	a.line(fmt.Sprintf("connection refused reason=%s pid=%d uid=%d gid=%d", reason, p.pid, p.uid, p.gid))
}

// line writes text, or counts it as dropped.
func (a *audit) line(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if since := time.Since(a.filled); since >= time.Second {
		a.tokens, a.filled = linesPerSecond, time.Now()
	}
	if a.tokens > 0 {
		select {
		case a.lines <- "hallmark-supervisor: " + text + "\n":
			a.tokens--
			return
		default:
		}
	}
	a.counts["audit-dropped"]++
}

func (a *audit) snapshot() map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.counts)
}
