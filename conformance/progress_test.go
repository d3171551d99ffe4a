// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mattn/go-runewidth"
)

// screen is a terminal of some width: what is left on it after what was written.
type screen struct {
	t     *testing.T
	width int
	rows  []string
	row   int
}

func (s *screen) Write(b []byte) (int, error) {
	text := string(b)
	put := func(plain string) {
		for len(s.rows) <= s.row {
			s.rows = append(s.rows, "")
		}
		s.rows[s.row] += plain
		if w := runewidth.StringWidth(s.rows[s.row]); s.width > 0 && w > s.width {
			s.t.Errorf("%d cells in a terminal of %d: %q", w, s.width, s.rows[s.row])
		}
	}
	for text != "" {
		i := strings.IndexAny(text, "\x1b\r\n")
		if i < 0 {
			put(text)
			break
		}
		put(text[:i])
		rest := text[i:]
		switch {
		case rest[0] == '\n':
			s.row++
			rest = rest[1:]
		case rest[0] == '\r':
			rest = rest[1:]
		case strings.HasPrefix(rest, "\x1b[K"):
			s.rows[s.row] = ""
			rest = rest[3:]
		case strings.HasPrefix(rest, "\x1b[A"):
			s.rows = s.rows[:s.row]
			s.row--
			rest = rest[3:]
		default:
			s.t.Fatalf("unknown control %q", rest)
		}
		text = rest
	}
	return len(b), nil
}

func (s *screen) last() string { return s.rows[len(s.rows)-1] }

func live(t *testing.T, width int, total int) (*progress, *screen) {
	s := &screen{t: t, width: width}
	p := newProgress(s, true, false, total)
	p.width = func() int { return s.width }
	return p, s
}

func TestLiveLineSaysWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := live(t, 80, 9)
		p.event(event{Kind: "phase", Text: "arm tree-hash"})
		time.Sleep(2100 * time.Millisecond)
		if got := s.last(); got != "[0/9] 2s  arm tree-hash 2s" {
			t.Errorf("while arming: %q", got)
		}
		p.event(event{Kind: "armed", ID: "tree-hash", Status: Pass})
		if got := s.last(); got != "[0/9] 2s" {
			t.Errorf("after ARMED the label stays: %q", got)
		}
		p.event(event{Kind: "start", ID: "FS-02"})
		time.Sleep(3 * time.Second)
		p.event(event{Kind: "start", ID: "PR-01"})
		p.event(event{Kind: "start", ID: "QT-01"})
		time.Sleep(time.Second)
		if got := s.last(); got != "[0/9] 6s  FS-02 3s  PR-01 0s  QT-01 0s" {
			t.Errorf("three at once: %q", got)
		}
		p.event(event{Kind: "end", ID: "PR-01", Status: Fail, Reason: "host-hurt", Text: "p99 \x1b[2J\u202e rose", Ms: 1000})
		if got := s.last(); got != "[1/9] 1 failed 6s  FS-02 4s  QT-01 1s" {
			t.Errorf("after a failure: %q", got)
		}
		p.close()
		want := "ARMED tree-hash\n" + `FAIL PR-01 1.0s host-hurt: p99 \x1b[2J\u{202e} rose` + "\n"
		if got := strings.Join(s.rows, "\n"); got != want {
			t.Errorf("left on the screen:\n%q\nwant\n%q", got, want)
		}
	})
}

// Whatever the width, no line wraps, and the counts are what stays.
func TestLiveLineFits(t *testing.T) {
	for width := 8; width <= 100; width++ {
		p, s := live(t, width, 120)
		for i := range 8 {
			p.event(event{Kind: "start", ID: fmt.Sprintf("漢字-%02d", i)})
		}
		p.event(event{Kind: "end", ID: "漢字-00", Status: Errored, Reason: "r", Text: strings.Repeat("漢字\x1b[31m ", 60)})
		if got := s.last(); !strings.HasPrefix(got, "[1/120]"[:min(7, width-1)-1]) {
			t.Errorf("width %d: %q", width, got)
		}
		if got := s.last(); width >= 40 && !strings.Contains(got, " +") && !strings.Contains(got, "漢字-07") {
			t.Errorf("width %d does not say that more run: %q", width, got)
		}
		p.close()
	}
}

// A terminal that becomes narrower wraps what is on it.
func TestResizeLeavesNoRest(t *testing.T) {
	p, s := live(t, 60, 3)
	p.event(event{Kind: "end", ID: "AA-01", Status: Pass})
	p.event(event{Kind: "start", ID: "a-rather-long-name-of-a-case-that-runs"})
	line := s.last()
	s.width = 20
	s.rows = s.rows[:len(s.rows)-1]
	for line != "" {
		n := min(20, len(line))
		s.rows = append(s.rows, line[:n])
		line = line[n:]
	}
	s.row = len(s.rows) - 1
	p.event(event{Kind: "end", ID: "a-rather-long-name-of-a-case-that-runs", Status: Pass})
	p.close()
	if got := strings.Join(s.rows, "|"); got != "PASS AA-01 0.0s|PASS a-rather-long-~|" {
		t.Errorf("left on the screen: %q", got)
	}
}

func TestPlainLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := newProgress(&b, false, true, 3)
		for range 2 { // two processes
			p.event(event{Kind: "phase", Text: "open target"})
			p.event(event{Kind: "armed", ID: "wire", Status: Pass})
		}
		p.event(event{Kind: "armed", ID: "tape", Status: Fail, Text: "nothing was recorded"})
		p.event(event{Kind: "start", ID: "FS-02"})
		p.event(event{Kind: "start", ID: "PR-01"})
		time.Sleep(29500 * time.Millisecond)
		synctest.Wait()
		if strings.Contains(b.String(), "[0/3]") {
			t.Errorf("a heartbeat before its time:\n%s", b.String())
		}
		time.Sleep(35 * time.Second)
		synctest.Wait()
		p.event(event{Kind: "end", ID: "FS-02", Status: Pass, Ms: 64500})
		p.event(event{Kind: "end", ID: "PR-01", Status: NotRun, Reason: "part-unavailable", Text: "the target lacks\r\nobserver.cgroup"})
		p.close()
		want := "      open target\nARMED wire\nUNARMED tape nothing was recorded\n      [0/3] 30s  FS-02 30s  PR-01 30s\n      [0/3] 1m00s  FS-02 1m00s  PR-01 1m00s\n" +
			"PASS FS-02 64.5s\n" + `NOT-RUN PR-01 0.0s part-unavailable: the target lacks\x0d observer.cgroup` + "\n"
		if b.String() != want {
			t.Errorf("got\n%s\nwant\n%s", b.String(), want)
		}
		if strings.ContainsAny(b.String(), "\r\x1b") {
			t.Error("plain lines move the cursor")
		}
	})
}

func TestColourOnlyWhereAsked(t *testing.T) {
	for _, color := range []bool{false, true} {
		var b bytes.Buffer
		p := newProgress(&b, true, color, 1)
		p.event(event{Kind: "end", ID: "FS-02", Status: Fail, Reason: "r", Text: "t"})
		p.close()
		if strings.Contains(b.String(), "\x1b[1;31mFAIL\x1b[0m FS-02") != color {
			t.Errorf("colour %t: %q", color, b.String())
		}
	}
}

// What failed is told however much was not run before it.
func TestSummaryTellsFailuresFirst(t *testing.T) {
	var r Report
	for i := range maxRepeated + 5 {
		r.Cases = append(r.Cases, ReportCase{ID: fmt.Sprintf("AA-%02d", i), Status: NotRun, Reason: "part-unavailable"})
	}
	r.Cases = append(r.Cases, ReportCase{ID: "ZZ-01", Status: Fail, Reason: "got-out"})
	var b bytes.Buffer
	p := newProgress(&b, false, false, len(r.Cases))
	p.close()
	p.summary(r)
	if out := b.String(); !strings.Contains(out, "FAIL ZZ-01") || !strings.Contains(out, "and 6 more") || strings.Contains(out, "AA-19") {
		t.Errorf("got\n%s", out)
	}
}

func TestSummary(t *testing.T) {
	r, _ := fixedReport()
	r.Cases[1].Workloads[0].Failed[0].Text = "read " + strings.Repeat("W", 130) + " \x1b[2J"
	r.Cases = append(r.Cases, ReportCase{ID: "RS-01", Status: NotRun, Reason: "run-ended"}, ReportCase{ID: "RS-02", Status: NotRun, Reason: "not-selected"})
	r.Families = families(r.Cases, nil)
	var b bytes.Buffer
	p := newProgress(&b, false, false, 7)
	p.width = func() int { return 60 }
	p.close()
	p.summary(r)
	want := `
FS  11.8 s  1 pass, 1 fail, 1 inconclusive
PR  1m10s   1 error, 1 waived
QT  0.0 s   1 not-applicable, 1 not-run
RS  0.0 s   1 not-run

FAIL FS-02 Leaf symlink: target-read
    target-read: read
    WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
    WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
    WWWWWWWWWWWWWWWWWW \x1b[2J
    target-read: reading out-relative returned the canary
    target-changed: the canary has other bytes
    target-read: reading out-shadow returned 1,203 bytes

ERROR PR-01 Fork bomb: panic
    panic: index out of range goroutine 7 [running]:
    main.main()

INCONCLUSIVE FS-03 Ancestor swap: no-witness
    hits: 2 of at least 20

WAIVED PR-02 Thread bomb: waived
    bug 12, until 2027-01-01

NOT-RUN QT-02 Inode fill: part-unavailable
    the target lacks observer.cgroup

the run ended before RS-01

`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
