// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"io"
	"sync"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// firstStep is the room that the first output of a stream gets, in bytes.
const firstStep = 4 << 10

// maxChunk bounds one chunk of output that a [Run] gives, in bytes.
const maxChunk = 32 << 10

// output is the only copy of what one command wrote. It is bounded by the command's own budget,
// which the control channel enforces, grows by appending only, and so lets any number of readers
// use what was there when they looked, without a lock and without a copy. Appending grows in few large
// steps that end at the budget: what the smaller ones leave behind is an eighth of it.
//
// The order between the two streams is not kept: a command that writes single bytes to both in turn
// would make a record of it larger than the output.
type output struct {
	mu     sync.Mutex
	budget int64         // of both; 0 for what grows no more
	data   [2][]byte     // stdout, stderr
	news   chan struct{} // closed at the next byte; nil while nobody waits
}

// take is the [control.Sink] of a running command.
func (o *output) take(stream uint8, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	have, other := o.data[stream-1], o.data[2-stream]
	if need := len(have) + len(p); need > cap(have) {
		most := max(int(o.budget)-len(other), need)
		have = append(make([]byte, 0, min(max(8*cap(have), need, firstStep), most)), have...)
	}
	o.data[stream-1] = append(have, p...)
	if o.news != nil {
		close(o.news)
		o.news = nil
	}
}

// all returns what came of both streams, when nothing more comes: it is kept without the room that was
// left.
func (o *output) all() (stdout, stderr []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, b := range o.data {
		if cap(b)-len(b) > len(b)/8 {
			o.data[i] = append(make([]byte, 0, len(b)), b...)
		}
	}
	return o.data[0], o.data[1]
}

// after returns the rest of each stream behind the first at bytes of it, and a channel that is
// closed at the next byte.
func (o *output) after(at [2]int) (rest [2][]byte, news <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.news == nil {
		o.news = make(chan struct{})
	}
	for i, b := range o.data {
		rest[i] = b[at[i]:len(b):len(b)]
	}
	return rest, o.news
}

// Run is one caller's hold of an invocation: the only one of a running command, or one of many
// repetitions of an ended one. Its methods are for one goroutine; Close may be called from any.
type Run struct {
	inv   *invocation
	out   *output
	only  *kept  // the outcome of a secret-bearing invocation, which inv does not hold; else nil
	at    [2]int // how much of each stream was given
	turn  int    // the stream that is asked first
	leave context.CancelFunc
}

// Next returns the next chunk of output, at most 32 KiB, of stdout or of stderr. The bytes of each
// stream come in the order in which the command wrote them, both streams in turn where both have
// some. It waits until there is a chunk, or returns io.EOF when the invocation has ended and all
// was given, or ctx's error, after which Next may be called again. The bytes must not be changed.
func (r *Run) Next(ctx context.Context) (stderr bool, chunk []byte, err error) {
	for {
		ended := r.inv.over() // before the look: what came until the end is then seen by it
		rest, news := r.out.after(r.at)
		for _, i := range [2]int{r.turn, 1 - r.turn} {
			if b := rest[i]; len(b) > 0 {
				b = b[:min(len(b), maxChunk)]
				r.at[i] += len(b)
				r.turn = 1 - i
				return i == 1, b, nil
			}
		}
		if ended {
			return false, nil, io.EOF
		}
		select {
		case <-news:
		case <-r.inv.ended:
		case <-ctx.Done():
			return false, nil, ctx.Err()
		}
	}
}

// Ended is closed when the outcome is there.
func (r *Run) Ended() <-chan struct{} { return r.inv.ended }

// Outcome waits for the end of the invocation and returns its outcome with all kept output. The end
// of the caller's context ends the invocation too, so this wait is bounded.
func (r *Run) Outcome() (api.ExecResult, error) {
	<-r.inv.ended
	if r.only != nil {
		return r.only.result, r.only.err
	}
	return r.inv.result, r.inv.err
}

// Close says that this caller takes nothing more. Of a running command it is the only caller, so
// the command is ended. Close does not wait, and may be repeated.
func (r *Run) Close() { r.leave() }
