// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

var script = Script{Content: []byte("abcde"), Steps: []Step{{12, 3, 4, 1}, Settle, {2, 0, 7, 3}}}

func TestScriptIsWhatIsWritten(t *testing.T) {
	if got := strings.Join(script.Argv("./p", "-time", "1s"), " "); got != "./p --allow-outside-sandbox emit -time 1s 12:3:4:1 settle 2:0:7:3" {
		t.Error(got)
	}
	if a, b := string(script.Prefix(1, 100)), string(script.Prefix(2, 100)); a != "deab" || b != "deababcdeab" {
		t.Errorf("%q, %q", a, b)
	}
	if a, b := string(script.Prefix(2, 6)), script.Prefix(2, 0); a != "deabab" || len(b) != 0 {
		t.Errorf("%q, %q", a, b)
	}
	if script.Length(1) != 4 || script.Length(2) != 11 || script.Total() != 15 {
		t.Error(script.Length(1), script.Length(2), script.Total())
	}
}

// Each way of being wrong has its own reason; what is owed has none.
func TestDifferencesFindEachFault(t *testing.T) {
	good := target.Result{Stdout: []byte("deab"), Stderr: []byte("deabab"), DroppedBytes: 5, TruncatedStderr: true}
	for name, tt := range map[string]struct {
		change func(r *target.Result)
		want   []string
	}{
		"as owed": {func(*target.Result) {}, nil},
		"the other one cut": {func(r *target.Result) {
			*r = target.Result{Stderr: []byte("deababcdea"), DroppedBytes: 5, TruncatedStdout: true, TruncatedStderr: true}
		}, nil},
		"more than the budget":   {func(r *target.Result) { r.Stderr, r.DroppedBytes = []byte("deababc"), 4 }, []string{"output-above-budget"}},
		"less than the budget":   {func(r *target.Result) { r.Stderr, r.DroppedBytes = []byte("deaba"), 6 }, []string{"output-missing"}},
		"another byte":           {func(r *target.Result) { r.Stdout = []byte("deaB") }, []string{"bytes-differ"}},
		"a byte too many":        {func(r *target.Result) { r.Stdout, r.Stderr = []byte("deabx"), []byte("deaba") }, []string{"bytes-differ"}},
		"streams exchanged":      {func(r *target.Result) { r.Stdout, r.Stderr = r.Stderr, r.Stdout }, []string{"bytes-differ"}},
		"one byte not counted":   {func(r *target.Result) { r.DroppedBytes = 4 }, []string{"bytes-unaccounted"}},
		"one byte counted twice": {func(r *target.Result) { r.DroppedBytes = 6 }, []string{"bytes-unaccounted"}},
		"no flag":                {func(r *target.Result) { r.TruncatedStderr = false }, []string{"truncated-in-silence"}},
		"the other flag too":     {func(r *target.Result) { r.TruncatedStdout = true }, []string{"truncated-untrue"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			tt.change(&r)
			var got []string
			for _, f := range script.Differences(r, 10) {
				got = append(got, f.Reason)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
