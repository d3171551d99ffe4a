// SPDX-License-Identifier: Apache-2.0

// Command bench runs the benchmarks that have a target and prints one table: medians, 99th
// percentiles and ratios, all of one run on one machine. It owns the list of rows. It measures
// nothing itself, and a target that is missed is shown, not an error: what a busy machine says is
// no reason to fail.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := onLab(ctx, func() error { return bench(ctx, os.Stdout) }); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(1)
	}
}

// onLab calls f with a running lab that benchmarks find, as ci/check does for tests.
func onLab(ctx context.Context, f func() error) error {
	_, down, err := lab.Provide(ctx, os.Stdout)
	if err != nil {
		return err
	}
	return errors.Join(f(), down())
}

// figures are by benchmark and unit.
type figures map[string]map[string]float64

func bench(ctx context.Context, out io.Writer) error {
	all := figures{}
	for _, r := range runs() {
		fmt.Fprintf(out, "%s %s, %s\n", r.pkg, strings.Trim(r.pattern, "^$"), r.times)
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", r.pattern, "-benchtime", r.times, "-timeout", "20m", r.pkg)
		var text bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w\n%s", r.pattern, err, &text)
		}
		if err := all.read(&text); err != nil {
			return err
		}
	}
	fmt.Fprintln(out)
	return table(out, all, rows())
}

// line is "BenchmarkName-2   100   123 ns/op   4.5 unit": testing.BenchmarkResult.String.
var line = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

func (f figures) read(text io.Reader) error {
	found := false
	in := bufio.NewScanner(text)
	for in.Scan() {
		m := line.FindStringSubmatch(in.Text())
		if m == nil {
			continue
		}
		found = true
		pairs := strings.Fields(m[2])
		f[m[1]] = map[string]float64{}
		for i := 0; i+1 < len(pairs); i += 2 {
			v, err := strconv.ParseFloat(pairs[i], 64)
			if err != nil {
				return fmt.Errorf("read %q: %w", in.Text(), err)
			}
			f[m[1]][pairs[i+1]] = v
		}
	}
	if err := in.Err(); err != nil {
		return err
	}
	if !found {
		return errors.New("a run printed no benchmark")
	}
	return nil
}

func table(out io.Writer, all figures, rows []row) error {
	used := map[string]bool{}
	get := func(bench, unit string) (float64, error) {
		used[bench] = true
		v, ok := all[bench][unit]
		if !ok {
			return 0, fmt.Errorf("no benchmark %s reports %s", bench, unit)
		}
		return v, nil
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tMEASURED\tBESIDE\tTARGET")
	for _, r := range rows {
		v, err := get(r.bench, r.unit)
		if err != nil {
			return err
		}
		judged, ratio, beside := v, 0.0, ""
		if r.beside != "" {
			name, unit, other := strings.Cut(r.beside, " ")
			if !other {
				unit = r.unit
			}
			base, err := get(name, unit)
			if err != nil {
				return err
			}
			judged, ratio = v-base, v/base
			sign := "+"
			if judged < 0 {
				sign = "-"
			}
			beside = fmt.Sprintf("%s%s, x%.2f", sign, show(max(judged, -judged), r.unit), ratio)
		}
		text := ""
		switch t := r.target; {
		case t.difference > 0:
			text = "at most " + show(t.difference, r.unit) + met(judged <= t.difference)
		case t.ratio > 0 && beside == "":
			return fmt.Errorf("%s: a ratio to nothing", r.title)
		case t.ratio > 0:
			text = fmt.Sprintf("at most x%.2f", t.ratio) + met(ratio <= t.ratio)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.title, show(v, r.unit), beside, text)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
	var unused []string
	for name := range all {
		if !used[name] {
			unused = append(unused, name)
		}
	}
	if len(unused) > 0 {
		return fmt.Errorf("no row shows %s", strings.Join(unused, ", "))
	}
	return nil
}

func met(yes bool) string {
	if yes {
		return ": met"
	}
	return ": MISSED"
}

// show writes a figure with the unit that people read: what comes after the last dash.
func show(v float64, unit string) string {
	switch unit[strings.LastIndex(unit, "-")+1:] {
	case "µs":
		return fmt.Sprintf("%.2f ms", v/1e3)
	case "ns/op":
		return fmt.Sprintf("%.1f ms", v/1e6)
	case "requests/s":
		return fmt.Sprintf("%.0f/s", v)
	case "MiB/connection":
		return fmt.Sprintf("%.3f MiB", v)
	case "MiB":
		return fmt.Sprintf("%.1f MiB", v)
	case "tasks":
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
