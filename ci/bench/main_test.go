// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

const text = `goos: linux
BenchmarkA/plain-2     	    2000	     72606 ns/op	        40.00 p50-µs	       625.0 p99-µs
BenchmarkA/durable-16  	    2000	   1855006 ns/op	       740.0 p50-µs	     20419 p99-µs
PASS
`

func TestTable(t *testing.T) {
	f := figures{}
	if err := f.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		beside string
		target target
		says   string
	}{
		"met":             {"BenchmarkA/plain", atMost(1000), "0.74 ms +0.70 ms, x18.50 at most 1.00 ms: met"},
		"missed":          {"BenchmarkA/plain", atMost(699), "0.74 ms +0.70 ms, x18.50 at most 0.70 ms: MISSED"},
		"ratio met":       {"BenchmarkA/plain", atMostRatio(18.5), "0.74 ms +0.70 ms, x18.50 at most x18.50: met"},
		"ratio missed":    {"BenchmarkA/plain", atMostRatio(18.49), "0.74 ms +0.70 ms, x18.50 at most x18.49: MISSED"},
		"of another unit": {"BenchmarkA/plain p99-µs", atMost(1), "0.74 ms +0.12 ms, x1.18 at most 0.00 ms: MISSED"},
		"below the other": {"BenchmarkA/durable p99-µs", atMostRatio(0.25), "0.74 ms -19.68 ms, x0.04 at most x0.25: met"},
	} {
		var out bytes.Buffer
		err := table(&out, f, []row{{name, "BenchmarkA/durable", "p50-µs", tt.beside, tt.target}, {"", "BenchmarkA/plain", "p50-µs", "", none}})
		if err != nil || !strings.Contains(strings.Join(strings.Fields(out.String()), " "), tt.says) {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
}

// A row without its figure, and a figure without its row, are errors.
func TestTableIsComplete(t *testing.T) {
	f := figures{}
	if err := f.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for _, rows := range [][]row{
		{{"a", "BenchmarkA/durable", "p50-µs", "", none}},
		{{"a", "BenchmarkA/durable", "p50-ns", "BenchmarkA/plain", none}},
		{{"a", "BenchmarkA/durable", "p50-µs", "", atMostRatio(1)}, {"b", "BenchmarkA/plain", "p50-µs", "", none}},
		{{"a", "BenchmarkB", "p50-µs", "BenchmarkA/plain", none}, {"a", "BenchmarkA/durable", "p50-µs", "", none}},
	} {
		if err := table(&bytes.Buffer{}, f, rows); err == nil {
			t.Errorf("accepted %+v", rows)
		}
	}
	for _, bad := range []string{"", "PASS\n", "BenchmarkA-2 1 x ns/op\n"} {
		if err := (figures{}).read(strings.NewReader(bad)); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}
