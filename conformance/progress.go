// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress writes one plain line per finished case, and on a terminal one live line below them.
type progress struct {
	w     io.Writer
	live  bool
	total int

	mu    sync.Mutex
	done  int
	now   string
	since time.Time
	stop  chan struct{}
	ended chan struct{}
}

func newProgress(w io.Writer, live bool, total int) *progress {
	if w == nil {
		w = io.Discard
	}
	p := &progress{w: w, live: live, total: total, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			case <-p.stop:
				return
			}
		}
	}()
	return p
}

func (p *progress) event(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case "phase":
		p.now, p.since = e.Text, time.Now()
		if !p.live {
			p.line("      %s", e.Text)
		}
	case "armed":
		if e.Status == Pass {
			p.line("ARMED %s", e.ID)
		} else {
			p.line("UNARMED %s %s", e.ID, oneLine(e.Text))
		}
	case "start":
		p.now, p.since = e.ID, time.Now()
	case "end":
		p.done++
		p.now = ""
		tail := ""
		if e.Status != Pass {
			tail = " " + e.Reason + ": " + oneLine(e.Text)
		}
		p.line("%s %s %.1fs%s", strings.ToUpper(string(e.Status)), e.ID, float64(e.Ms)/1000, tail)
	}
	p.draw()
}

// line writes a permanent line above the live one.
func (p *progress) line(format string, args ...any) {
	if p.live {
		io.WriteString(p.w, "\r\x1b[K")
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

func (p *progress) draw() {
	if !p.live {
		return
	}
	now := ""
	if p.now != "" {
		now = fmt.Sprintf("  %s %ds", p.now, int(time.Since(p.since).Seconds()))
	}
	fmt.Fprintf(p.w, "\r\x1b[K[%d/%d]%s", p.done, p.total, now)
}

func (p *progress) close() {
	close(p.stop)
	<-p.ended
	if p.live {
		io.WriteString(p.w, "\r\x1b[K")
	}
}

// oneLine cuts s to what fits a line of a log; a tenant's bytes must not move the cursor.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x9b {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 200 {
		return string(r[:200]) + "..."
	}
	return s
}
