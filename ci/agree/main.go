// SPDX-License-Identifier: Apache-2.0

// Command agree runs the suite several times on one lab and says whether the runs agree, case by
// case, on status and reason. It starts bin/hallmark and reads its reports; it judges no case.
// Arguments after the flags go to `hallmark run`.
//
//	make build && go run ./ci/agree -n 20
//
// Exit status: 0 when all agree, 1 when not or when a case ended with an error of the suite, 3
// when a run could not be done.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

func main() {
	n := flag.Int("n", 20, "number of runs")
	tier := flag.String("tier", "smoke", "tier of the runs")
	out := flag.String("out", filepath.Join("out", "agree"), "folder for the reports, one below it for each run")
	program := flag.String("hallmark", filepath.Join("bin", "hallmark"), "program to run")
	cohort := flag.String("cohort", filepath.Join("ci", "cohorts", "runsc.yaml"), "cohort file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	args := append([]string{"run", "--cohort", *cohort, "--tier", *tier}, flag.Args()...)
	agreed, err := several(ctx, os.Stdout, *n, *program, args, *out)
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "error: %v.\nremedy: run `make build`, as root, in the repository's root; `hallmark doctor` says what this machine lacks.\n", err)
		os.Exit(3)
	case !agreed:
		os.Exit(1)
	}
}

// several runs the program n times on a lab that stays up meanwhile.
func several(ctx context.Context, w io.Writer, n int, program string, args []string, out string) (agreed bool, err error) {
	if n < 2 {
		return false, fmt.Errorf("%d runs cannot agree", n)
	}
	l, err := lab.Up(ctx, lab.Options{Out: w, Bound: true})
	if err != nil {
		return false, fmt.Errorf("start lab: %w", err)
	}
	if l.Fresh {
		// Its own context: an interrupt must not cut the clean-up short.
		defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	}
	release, err := l.Use()
	if err != nil {
		return false, err
	}
	defer release()
	var first report
	var times []time.Duration
	agreed = true
	for i := range n {
		begin := time.Now()
		r, err := once(ctx, program, args, filepath.Join(out, strconv.Itoa(i+1)))
		if err != nil {
			return false, fmt.Errorf("run %d: %w", i+1, err)
		}
		took := time.Since(begin)
		times = append(times, took)
		fmt.Fprintf(w, "run %2d of %d  %-15s %6.1fs  seed %d\n", i+1, n, r.Verdict, took.Seconds(), r.Seed)
		if i == 0 {
			first = r
			for _, c := range r.Cases {
				if c.Status != "pass" && c.Reason != "not-selected" {
					fmt.Fprintf(w, "  %s %s %s: %s\n", c.ID, c.Status, c.Reason, c.Text)
				}
			}
		}
		differs := append(r.broken(), r.differences(first)...)
		for _, d := range differs {
			fmt.Fprintf(w, "  %s\n", d)
		}
		agreed = agreed && len(differs) == 0
	}
	slices.Sort(times)
	word := "agree"
	if !agreed {
		word = "DO NOT AGREE"
	}
	fmt.Fprintf(w, "%d runs %s; durations: min %.1fs, median %.1fs, max %.1fs; reports below %s\n", n, word,
		times[0].Seconds(), times[n/2].Seconds(), times[n-1].Seconds(), out)
	return agreed, nil
}

// report is what is read of report.json.
type report struct {
	Verdict string `json:"verdict"`
	Seed    int64  `json:"seed"`
	Cases   []struct {
		ID     string `json:"id"`
		Status string `json:"status"`
		Reason string `json:"reason"`
		Text   string `json:"text"`
	} `json:"cases"`
}

// once runs the program; whatever the cases come to is a report.
func once(ctx context.Context, program string, args []string, out string) (report, error) {
	var r report
	if err := os.RemoveAll(out); err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(args), "--out", out)...)
	cmd.Env = append(os.Environ(), "CI=true") // plain lines, wherever this runs
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	body, rerr := os.ReadFile(filepath.Join(out, "report.json"))
	if rerr != nil {
		return r, fmt.Errorf("no report (%v): %s", err, text[max(0, len(text)-2000):])
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("read report: %w", err)
	}
	if len(r.Cases) == 0 {
		return r, errors.New("the report has no case")
	}
	return r, nil
}

// broken names the cases that say nothing of the target: runs that agree on those show nothing.
func (r report) broken() []string {
	var out []string
	for _, c := range r.Cases {
		if c.Status == "error" {
			out = append(out, fmt.Sprintf("%s ended with an error of the suite: %s: %s", c.ID, c.Reason, c.Text))
		}
	}
	return out
}

// differences compares verdict, and status and reason of every case, with those of the first run.
func (r report) differences(first report) []string {
	var out []string
	if first.Verdict != r.Verdict {
		out = append(out, fmt.Sprintf("verdict: %s in run 1, %s here", first.Verdict, r.Verdict))
	}
	was := map[string]string{}
	for _, c := range first.Cases {
		was[c.ID] = c.Status + " " + c.Reason
	}
	for _, c := range r.Cases {
		now := c.Status + " " + c.Reason
		if then, ok := was[c.ID]; !ok || then != now {
			out = append(out, fmt.Sprintf("%s: %q in run 1, %q here: %s", c.ID, then, now, c.Text))
		}
		delete(was, c.ID)
	}
	for id := range was {
		out = append(out, id+": in run 1, missing here")
	}
	slices.Sort(out)
	return out
}
