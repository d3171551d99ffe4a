// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-runewidth"
	"golang.org/x/sys/unix"
)

// progress writes one plain line for each phase, oracle and finished case. On a terminal one
// live line below them says what is running; elsewhere a line comes when nothing else did for
// a while, so that a log shows life. What a tenant wrote never moves the cursor.
type progress struct {
	w     io.Writer
	live  bool
	color bool
	total int
	width func() int // of the terminal, in cells; 0 when there is none

	mu      sync.Mutex
	started time.Time
	last    time.Time // when the latest line was written
	done    int
	tally   map[Status]int
	phase   string    // under way, or ""
	since   time.Time // of phase
	told    map[string]bool
	running []runningCase // in the order of their starts
	drawn   int           // cells of the live line on the screen

	stop  chan struct{}
	ended chan struct{}
}

type runningCase struct {
	id    string
	since time.Time
}

// quiet is how long a log may be silent before it is told that the run is alive.
const quiet = 30 * time.Second

func newProgress(w io.Writer, live, color bool, total int) *progress {
	if w == nil {
		w = io.Discard
	}
	now := time.Now()
	p := &progress{
		w: w, live: live, color: live && color, total: total, width: terminalWidth(w), started: now, last: now,
		tally: map[Status]int{}, told: map[string]bool{}, stop: make(chan struct{}), ended: make(chan struct{}),
	}
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.mu.Lock()
				p.beat()
				p.mu.Unlock()
			case <-p.stop:
				return
			}
		}
	}()
	return p
}

// terminalWidth asks the terminal behind w each time, so that a resize is followed.
func terminalWidth(w io.Writer) func() int {
	f, ok := w.(*os.File)
	if !ok {
		return func() int { return 0 }
	}
	return func() int {
		size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0
		}
		return int(size.Col)
	}
}

func (p *progress) event(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case "phase":
		p.phase, p.since = oneLine(e.Text, 60), time.Now()
		// Processes that run side by side each go through the phases.
		if !p.live && !p.told["phase "+e.Text] {
			p.line("", "      "+p.phase)
		}
		p.told["phase "+e.Text] = true
	case "armed":
		p.phase = ""
		text := "ARMED " + oneLine(e.ID, 60)
		if e.Status != Pass {
			text = "UNARMED " + oneLine(e.ID, 60) + " " + oneLine(e.Text, 300)
		}
		if !p.told[text] {
			p.line(e.Status, text)
		}
		p.told[text] = true
	case "start":
		p.phase = ""
		p.running = append(p.running, runningCase{e.ID, time.Now()})
	case "end":
		p.done++
		p.tally[e.Status]++
		p.running = slices.DeleteFunc(p.running, func(r runningCase) bool { return r.id == e.ID })
		text := fmt.Sprintf("%s %s %.1fs", strings.ToUpper(string(e.Status)), oneLine(e.ID, 60), float64(e.Ms)/1000)
		if e.Status != Pass {
			text += " " + oneLine(e.Reason, 60) + ": " + oneLine(e.Text, 300)
		}
		p.line(e.Status, text)
	}
	p.draw()
}

// line writes a permanent line above the live one. Its first word takes the colour of s.
func (p *progress) line(s Status, text string) {
	p.clear()
	p.last = time.Now()
	if p.live {
		if width := p.width(); width > 0 {
			text = fit(text, width)
		}
	}
	if word, rest, ok := strings.Cut(text, " "); ok && p.color && s != "" {
		text = paint(s, word) + " " + rest
	}
	io.WriteString(p.w, text+"\n")
}

// beat is called every second.
func (p *progress) beat() {
	if !p.live && time.Since(p.last) >= quiet {
		p.line("", "      "+p.status(0))
	}
	p.draw()
}

// draw replaces the live line.
func (p *progress) draw() {
	if !p.live {
		return
	}
	width := p.width()
	if width == 0 {
		width = 80
	}
	// One cell is left free: some terminals wrap when the last one is written.
	text := p.status(width - 1)
	p.clear()
	p.drawn = runewidth.StringWidth(text)
	if failed := p.failures(); p.color && failed != "" {
		text = strings.Replace(text, failed, paint(Fail, failed), 1)
	}
	io.WriteString(p.w, text)
}

// clear removes the live line. A terminal that has become narrower since has wrapped it, and
// the cursor stands in its last row.
func (p *progress) clear() {
	if !p.live || p.drawn == 0 {
		return
	}
	// Row by row: some terminals keep in their history what an erased screen held.
	rows := 1
	if width := p.width(); width > 0 {
		rows = (p.drawn-1)/width + 1
	}
	io.WriteString(p.w, "\r\x1b[K"+strings.Repeat("\x1b[A\x1b[K", rows-1))
	p.drawn = 0
}

// status says where the run stands, in at most width cells; 0 is no bound. What matters most
// comes first: the running cases give way to the width.
func (p *progress) status(width int) string {
	now := time.Now()
	text := fmt.Sprintf("[%d/%d]", p.done, p.total)
	if failed := p.failures(); failed != "" {
		text += " " + failed
	}
	text += " " + clock(now.Sub(p.started))
	if width > 0 {
		text = fit(text, width)
	}
	if p.phase != "" && len(p.running) == 0 {
		return fitted(text+"  "+p.phase+" "+clock(now.Sub(p.since)), width)
	}
	for i, r := range p.running {
		more := fmt.Sprintf(" +%d", len(p.running)-i)
		next := fmt.Sprintf("  %s %s", oneLine(r.id, 60), clock(now.Sub(r.since)))
		room := width
		if i < len(p.running)-1 {
			room -= runewidth.StringWidth(more)
		}
		if width > 0 && runewidth.StringWidth(text+next) > room {
			return fitted(text+more, width)
		}
		text += next
	}
	return text
}

// failures is what is not as it should be so far, or "".
func (p *progress) failures() string {
	var out []string
	for _, s := range []struct {
		status Status
		word   string
	}{{Fail, "failed"}, {Errored, "error"}, {Inconclusive, "inconclusive"}} {
		if n := p.tally[s.status]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, s.word))
		}
	}
	return strings.Join(out, ", ")
}

func (p *progress) close() {
	close(p.stop)
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// fit cuts s to width cells.
func fit(s string, width int) string { return runewidth.Truncate(s, max(width, 1), "~") }

func fitted(s string, width int) string {
	if width == 0 {
		return s
	}
	return fit(s, width)
}

// clock is d as "42s" or "3m05s".
func clock(d time.Duration) string {
	s := int(d.Seconds())
	if s < 60 {
		return fmt.Sprintf("%ds", s)
	}
	return fmt.Sprintf("%dm%02ds", s/60, s%60)
}

// paint gives text the colour of a status.
func paint(s Status, text string) string {
	code := map[Status]string{Pass: "32", Fail: "1;31", Errored: "1;33", Inconclusive: "33", Waived: "33"}[s]
	if code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
