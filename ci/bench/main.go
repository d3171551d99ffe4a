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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(1)
	}
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
		judged, beside := v, ""
		if r.beside != "" {
			base, err := get(r.beside, r.unit)
			if err != nil {
				return err
			}
			judged = v - base
			sign := "+"
			if judged < 0 {
				sign = "-"
			}
			beside = fmt.Sprintf("%s%s, x%.2f", sign, show(max(judged, -judged), r.unit), v/base)
		}
		target := ""
		if r.atMost > 0 {
			target = "at most " + show(r.atMost, r.unit)
			if judged > r.atMost {
				target += ": MISSED"
			} else {
				target += ": met"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.title, show(v, r.unit), beside, target)
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

// show writes a figure with the unit that people read.
func show(v float64, unit string) string {
	_, kind, named := strings.Cut(unit, "-")
	if !named {
		kind = unit
	}
	switch kind {
	case "µs":
		return fmt.Sprintf("%.2f ms", v/1e3)
	case "ns/op":
		return fmt.Sprintf("%.1f ms", v/1e6)
	case "requests/s":
		return fmt.Sprintf("%.0f/s", v)
	case "MiB/connection":
		return fmt.Sprintf("%.3f MiB", v)
	}
	return fmt.Sprintf("%.3f", v)
}
