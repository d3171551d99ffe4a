// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// bed is a collector with the writing ends of its pipes. Each frame waits for a word on pass.
type bed struct {
	*collector
	write [2]int
	pass  chan bool // nil: nothing waits
	said  chan string
}

func newBed(t *testing.T, limit int64, held bool) *bed {
	t.Helper()
	w, err := newWatch()
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{said: make(chan string, 1<<12)}
	if held {
		b.pass = make(chan bool)
	}
	var own [2]int
	for i := range own {
		if own[i], b.write[i], err = rawPipe("r"); err != nil {
			t.Fatal(err)
		}
	}
	b.collector, err = collect(w, own, limit, func(f control.Frame) {
		b.said <- string('0'+rune(f.Payload[0])) + string(f.Payload[1:])
		if b.pass != nil {
			<-b.pass
		}
	}, make([]byte, 1+control.OutputMax))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return b
}

func (b *bed) put(t *testing.T, stream int, text string) {
	t.Helper()
	if _, err := unix.Write(b.write[stream-1], []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func (b *bed) hang() {
	for _, fd := range b.write {
		unix.Close(fd)
	}
}

// The budget goes to what was written first, on whichever stream, however long both have waited.
func TestOutputIsTakenInTheOrderOfWriting(t *testing.T) {
	for _, first := range []int{1, 2} {
		b := newBed(t, 1000, true)
		second := 3 - first
		for range 20 {
			b.put(t, 1, "x") // the collector is held with it
			if got := <-b.said; got != "1x" {
				t.Fatalf("got %q", got)
			}
			b.put(t, first, "a")
			b.put(t, second, "b")
			b.put(t, first, "c") // goes with a: it stands in the list once
			for _, want := range []string{string('0'+rune(first)) + "ac", string('0'+rune(second)) + "b"} {
				b.pass <- true
				if got := <-b.said; got != want {
					t.Fatalf("stream %d first: got %q, want %q", first, got, want)
				}
			}
			b.pass <- true
		}
		b.hang()
		b.finish()
		if b.budget.kept != [2]uint64{uint64(20 * (4 - first)), uint64(20 * first)} {
			t.Errorf("stream %d first: %+v", first, b.budget)
		}
	}
}

// A stream that never falls silent leaves the other its turn, and neither the budget's end nor the
// flood keeps the collector from its own.
func TestFloodOfOneStream(t *testing.T) {
	for flooded := 1; flooded <= 2; flooded++ {
		b := newBed(t, 100, false)
		other := 3 - flooded
		block, ended := bytes.Repeat([]byte("f"), 64<<10), make(chan int)
		go func() {
			total := 0
			for {
				n, err := unix.Write(b.write[flooded-1], block)
				total += max(n, 0)
				if err != nil { // the collector has closed its end: EPIPE
					ended <- total
					return
				}
			}
		}()
		b.put(t, other, strings.Repeat("o", 50_000))
		b.put(t, other, strings.Repeat("o", 50_000)) // more than a pipe holds: it was read meanwhile
		time.Sleep(20 * time.Millisecond)
		b.finish()
		total := <-ended
		b.hang()
		k, d := b.budget.kept, b.budget.dropped
		if k[0]+k[1] != 100 || k[other-1]+d[other-1] != 100_000 || d[flooded-1] < 1<<20 {
			t.Errorf("stream %d floods: %+v", flooded, b.budget)
		}
		// What the writer counts and nobody read lay in the pipe when its reader went.
		if got := k[flooded-1] + d[flooded-1]; got > uint64(total) || got+maxPipe < uint64(total) {
			t.Errorf("stream %d floods: %d bytes counted of %d written", flooded, got, total)
		}
	}
}

// What the pipes hold when the tree is dead is taken, whoever holds them open; one watch serves many
// collectors, and the end of one is not the end of the next.
func TestCollectorsEndOneAfterTheOther(t *testing.T) {
	w, err := newWatch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	buf := make([]byte, 1+control.OutputMax)
	for i := range 50 {
		var own, write [2]int
		for j := range own {
			if own[j], write[j], err = rawPipe("r"); err != nil {
				t.Fatal(err)
			}
		}
		var got [2]string
		c, err := collect(w, own, 1<<20, func(f control.Frame) { got[f.Payload[0]-1] += string(f.Payload[1:]) }, buf)
		if err != nil {
			t.Fatal(err)
		}
		want := [2]string{strings.Repeat("a", 40_000+i), strings.Repeat("b", i)}
		for j, text := range want {
			unix.Write(write[j], []byte(text))
			if i%2 == 0 {
				unix.Close(write[j])
			}
		}
		if i%4 == 0 {
			<-c.done // by itself
		}
		c.finish()
		if got != want {
			t.Fatalf("round %d: %d and %d bytes", i, len(got[0]), len(got[1]))
		}
		if i%2 == 1 {
			for _, fd := range write {
				if _, err := unix.Write(fd, []byte("late")); err != unix.EPIPE {
					t.Fatalf("round %d: a pipe is still read: %v", i, err)
				}
				unix.Close(fd)
			}
		}
	}
}

// Bytes that are written one at a time are taken many at a time, and none is late.
func TestSingleBytesAreTakenTogether(t *testing.T) {
	const writes = 20_000
	b := newBed(t, 1<<20, false)
	first := time.Now()
	b.put(t, 1, "1")
	if got := <-b.said; got != "11" {
		t.Fatalf("got %q", got)
	}
	t.Logf("the first byte took %s", time.Since(first))
	began := time.Now()
	for range writes {
		b.put(t, 1, "x")
	}
	took := time.Since(began)
	b.hang()
	b.finish()
	close(b.said)
	frames, bytes := 0, 0
	for text := range b.said {
		frames++
		bytes += len(text) - 1
	}
	// One for each pause, and for each time that more than a few came; and the first and the last.
	most := int(took/pause) + writes/few + 4
	if bytes != writes || frames > most {
		t.Errorf("%d bytes came in %d frames within %s, at most %d", bytes, frames, took, most)
	}
}
