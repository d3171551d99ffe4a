// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
)

// Flip is one bit of one file.
type Flip struct {
	File   string
	Offset int
	Bit    int
}

// FlipReport says what a sweep did. Missed must be empty.
type FlipReport struct {
	Files, Flips int
	Reasons      map[Reason]int
	Missed       []Flip // admitted, or denied without a code of the table
}

// FlipSweep flips one bit, chosen by seed, at every offset of every small file of b, and at
// perBlob seeded offsets of every blob (at all of them when it is shorter), and asks whether
// q still admits. An error means that the unmodified bundle is not admitted.
//
// Blobs and layout files are not read before step 13, so for them the steps before it are
// taken once from the unmodified bundle; every hundredth of those flips goes through all
// steps as well and must give the same code.
func FlipSweep(q Question, b *Bundle, seed uint64, perBlob int) (FlipReport, error) {
	q.Depth = AuditDepth
	base := &examination{q: q, b: b}
	if err := base.all(); err != nil {
		return FlipReport{}, fmt.Errorf("flip sweep: the unmodified bundle: %w", err)
	}
	p := base.statement.Predicate
	jobs := make(chan Flip, 1024)
	reports := make([]FlipReport, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range reports {
		reports[i].Reasons = map[Reason]int{}
		wg.Go(func() {
			for f := range jobs {
				reports[i].take(f, judgeFlip(q, p, b, f))
			}
		})
	}
	total := FlipReport{Reasons: map[Reason]int{}}
	rng := rand.New(rand.NewPCG(seed, 0x68616c6c6d61726b))
	for _, name := range b.Names() {
		total.Files++
		size := len(b.files[name].data)
		if strings.HasPrefix(name, blobPrefix) && size > perBlob {
			for _, off := range spread(rng, size, perBlob) {
				jobs <- Flip{name, off, rng.IntN(8)}
			}
			continue
		}
		for off := range size {
			jobs <- Flip{name, off, rng.IntN(8)}
		}
	}
	close(jobs)
	wg.Wait()
	for _, r := range reports {
		total.Flips += r.Flips
		total.Missed = append(total.Missed, r.Missed...)
		for k, n := range r.Reasons {
			total.Reasons[k] += n
		}
	}
	return total, nil
}

func (r *FlipReport) take(f Flip, reason Reason) {
	r.Flips++
	r.Reasons[reason]++
	if reason.Step() < 0 {
		r.Missed = append(r.Missed, f)
	}
}

func judgeFlip(q Question, p Predicate, b *Bundle, f Flip) Reason {
	data := bytes.Clone(b.files[f.File].data)
	data[f.Offset] ^= 1 << f.Bit
	c := b.With(f.File, data)
	if isEvidenceFile(f.File) {
		return Decide(q, c).Reason
	}
	short := ReasonOf(checkArtifacts(p, c))
	if f.Offset%100 == 0 && Decide(q, c).Reason != short {
		return ""
	}
	return short
}

// spread returns n distinct offsets below size, the first and the last among them.
func spread(rng *rand.Rand, size, n int) []int {
	seen := map[int]bool{0: true, size - 1: true}
	for len(seen) < n {
		seen[rng.IntN(size)] = true
	}
	out := make([]int, 0, n)
	for off := range seen {
		out = append(out, off)
	}
	return out
}
