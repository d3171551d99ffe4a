// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"slices"
	"strings"
	"testing"
)

func TestLogBound(t *testing.T) {
	for name, tt := range map[string]struct {
		driver  string
		options map[string]string
		want    int64
		fails   bool
	}{
		"none":                  {driver: "none"},
		"the engine's default":  {driver: "json-file", want: Unlimited},
		"files without a size":  {driver: "json-file", options: map[string]string{"max-file": "3"}, want: Unlimited},
		"size of one file":      {driver: "json-file", options: map[string]string{"max-size": "10m"}, want: 10 << 20},
		"size and files":        {driver: "json-file", options: map[string]string{"max-size": "1k", "max-file": "3"}, want: 3072},
		"no size":               {driver: "json-file", options: map[string]string{"max-size": "-1"}, want: Unlimited, fails: true},
		"words for a size":      {driver: "json-file", options: map[string]string{"max-size": "much"}, fails: true},
		"no file":               {driver: "json-file", options: map[string]string{"max-size": "1k", "max-file": "0"}, fails: true},
		"local, by itself":      {driver: "local", want: 100_000_000},
		"local, of its size":    {driver: "local", options: map[string]string{"max-size": "1k", "max-file": "2"}, want: 2048},
		"leads elsewhere":       {driver: "syslog", options: map[string]string{"max-size": "1k"}, want: Unlimited},
		"a driver of an engine": {driver: "something", want: Unlimited},
	} {
		got, err := LogBound(tt.driver, tt.options)
		if (err != nil) != tt.fails || err == nil && got != tt.want {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}

func TestGrownCountsWhatCame(t *testing.T) {
	before := map[string]int64{"config": 100, "log": 5, "gone": 7}
	if n := Grown(before, map[string]int64{"config": 90, "log": 25, "new": 3}); n != 23 {
		t.Error(n)
	}
}

func TestCounterCountsLines(t *testing.T) {
	c := &counter{}
	for _, part := range []string{"a", "b\nc", "\n\n", strings.Repeat("x", 300), "y\n", "rest"} {
		c.Write([]byte(part))
	}
	h := c.heard()
	if h.Bytes != 312 || h.Lines != 4 || !slices.Equal(h.First, []string{"ab", "c", "", strings.Repeat("x", 200)}) {
		t.Errorf("%+v", h)
	}
}
