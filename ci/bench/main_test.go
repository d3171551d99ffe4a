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
		atMost float64
		says   string
	}{
		"met":    {1000, "0.74 ms +0.70 ms, x18.50 at most 1.00 ms: met"},
		"missed": {699, "0.74 ms +0.70 ms, x18.50 at most 0.70 ms: MISSED"},
	} {
		var out bytes.Buffer
		err := table(&out, f, []row{{name, "BenchmarkA/durable", "p50-µs", "BenchmarkA/plain", tt.atMost}})
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
		{{"a", "BenchmarkA/durable", "p50-µs", "", 0}},
		{{"a", "BenchmarkA/durable", "p50-ns", "BenchmarkA/plain", 0}},
		{{"a", "BenchmarkB", "p50-µs", "BenchmarkA/plain", 0}, {"a", "BenchmarkA/durable", "p50-µs", "", 0}},
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
