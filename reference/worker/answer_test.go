// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// slow is a writer with deadlines and without a connection.
type slow struct{ *httptest.ResponseRecorder }

func (slow) SetWriteDeadline(time.Time) error { return nil }

// The answer that is encoded in pieces is the text that the type's own encoding gives, for outputs of
// every length about a group, a piece and the bound.
func TestAnswerInPiecesIsTheSameText(t *testing.T) {
	zero := 0
	output := make([]byte, api.MaxOutputBytes)
	rand.Read(output)
	for _, n := range []int{0, 1, 2, 3, 4, 24<<10 - 1, 24 << 10, 24<<10 + 1, 100_003, api.MaxOutputBytes} {
		for _, res := range []api.ExecResult{
			{InvocationID: "i-1.x:y_z", Stdout: output[:n], ExitCode: &zero, Truncated: api.Truncated{Stdout: true, DroppedBytes: 7}, CleanupProven: true},
			{InvocationID: "stdout", Stderr: output[:n], Signal: "SIGKILL", TimedOut: true, DurationMs: 3},
			{InvocationID: "i", Stdout: output[:n/2], Stderr: output[n/2 : n], Signal: "SIGTERM"},
		} {
			want, err := strictjson.Marshal(res)
			if err != nil {
				t.Fatal(err)
			}
			inCancel, err := strictjson.Marshal(api.CancelResponse{Result: &res})
			if err != nil {
				t.Fatal(err)
			}
			of := res
			w := slow{httptest.NewRecorder()}
			if err := (&exchange{w: w, patience: time.Second}).answerResult(api.CancelResponse{Result: &of}, &of); err != nil {
				t.Fatal(err)
			}
			if got := w.Body.Bytes(); !bytes.Equal(got, inCancel) {
				t.Fatalf("%d bytes of output: %d bytes of text of a cancel, want %d", n, len(got), len(inCancel))
			}
			w = slow{httptest.NewRecorder()}
			if err := (&exchange{w: w, patience: time.Second}).answerResult(&res, &res); err != nil {
				t.Fatal(err)
			}
			if got := w.Body.Bytes(); !bytes.Equal(got, want) || w.Code != http.StatusOK || w.Header().Get("Content-Length") != strconv.Itoa(len(want)) || w.Header().Get("Content-Type") != api.TypeJSON {
				t.Fatalf("%d bytes of output: status %d, %v, %d bytes of text, want %d", n, w.Code, w.Header(), len(got), len(want))
			}
		}
	}
}

// No part of the output is in memory a second time: an answer of the largest output takes little.
func TestAnswerInPiecesTakesLittle(t *testing.T) {
	res := api.ExecResult{InvocationID: "i", Stdout: make([]byte, api.MaxOutputBytes), Signal: "SIGKILL"}
	got := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			of := res
			if err := (&exchange{w: &discard{header: http.Header{}}, patience: time.Second}).answerResult(api.CancelResponse{Result: &of}, &of); err != nil {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if got > 256<<10 {
		t.Errorf("an answer with %d bytes of output takes %d bytes", len(res.Stdout), got)
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header              { return d.header }
func (d *discard) Write(b []byte) (int, error)      { return len(b), nil }
func (d *discard) WriteHeader(int)                  {}
func (d *discard) SetWriteDeadline(time.Time) error { return nil }
