// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fill makes files empty ones in directories of 1,000.
func fill(b testing.TB, dir string, files int) {
	b.Helper()
	for d := range files / 1000 {
		sub := fmt.Sprintf("%s/d%04d", dir, d)
		must(b, os.Mkdir(sub, 0o755))
		for f := range 1000 {
			fd, err := unix.Open(fmt.Sprintf("%s/file-%d", sub, f), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
			must(b, err, unix.Close(fd))
		}
	}
}

// BenchmarkApply100000 gives 100,000 files to a project id, and has xfs_quota(8) do so on the same
// tree, in turn. xfs_quota walks once and looks at nothing afterwards.
func BenchmarkApply100000(b *testing.B) {
	xfsQuota, err := tool("xfs_quota")
	must(b, err)
	dir := newDir(b)
	fill(b, dir, 100_000)
	tr := open(b, dir)
	var ours, theirs []float64
	for b.Loop() {
		id := newID()
		unix.Sync()
		start := time.Now()
		count, err := tr.assign(context.Background(), id, barriers{})
		ours = append(ours, float64(time.Since(start).Microseconds()))
		if err != nil || count.Set != 100_101 {
			b.Fatalf("%+v, %v", count, err)
		}
		id = newID()
		c := xfsQuota("-x", "-c", "project -s -p "+dir+" "+strconv.Itoa(int(id)), volume)
		unix.Sync()
		start = time.Now()
		out, err := c.CombinedOutput()
		theirs = append(theirs, float64(time.Since(start).Microseconds()))
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		if _, err := tr.audit(context.Background(), id); err != nil {
			b.Fatalf("xfs_quota did something else: %v", err)
		}
	}
	b.ReportMetric(median(ours), "p50-µs")
	b.ReportMetric(median(theirs), "xfs_quota-p50-µs")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
