// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// lines is the media type of an exec that is answered as it goes: one JSON text per line.
const lines = "application/x-ndjson"

// Run asks for one command, with bounds of its own.
func Run(sb target.Sandbox, invocation string, argv []string, timeout time.Duration, budget int64) target.RawRequest {
	body, _ := json.Marshal(map[string]any{ // of strings and numbers
		"invocationId": invocation, "argv": argv, "cwd": "", "timeoutMs": timeout.Milliseconds(), "maxOutputBytes": budget,
	})
	return On(sb, "exec", "POST", "/exec", body)
}

// Streamed is req with an answer in lines.
func Streamed(req target.RawRequest) target.RawRequest {
	req.Header = map[string]string{"Accept": lines}
	return req
}

// outcome is the result of an exec, as the protocol has it.
type outcome struct {
	InvocationID string `json:"invocationId"`
	Stdout       []byte `json:"stdout"`
	Stderr       []byte `json:"stderr"`
	ExitCode     *int   `json:"exitCode,omitempty"`
	Signal       string `json:"signal,omitempty"`
	DurationMs   int64  `json:"durationMs"`
	Truncated    struct {
		Stdout       bool  `json:"stdout"`
		Stderr       bool  `json:"stderr"`
		DroppedBytes int64 `json:"droppedBytes"`
	} `json:"truncated"`
	DescendantsKilled int64 `json:"descendantsKilled"`
	CleanupProven     bool  `json:"cleanupProven"`
	TimedOut          bool  `json:"timedOut"`
}

func (o outcome) result() target.Result {
	r := target.Result{
		Stdout: o.Stdout, Stderr: o.Stderr, ExitCode: -1, Signal: o.Signal, Duration: time.Duration(o.DurationMs) * time.Millisecond,
		TruncatedStdout: o.Truncated.Stdout, TruncatedStderr: o.Truncated.Stderr, DroppedBytes: o.Truncated.DroppedBytes,
		DescendantsKilled: o.DescendantsKilled, CleanupProven: o.CleanupProven, TimedOut: o.TimedOut,
	}
	if o.ExitCode != nil {
		r.ExitCode = *o.ExitCode
	}
	return r
}

// room is what an answer with 4 MiB of output in base64 needs.
var room = strictjson.Limits{Bytes: maxAnswer, Depth: 4, StringBytes: maxAnswer}

// Result reads the answer of an exec in one piece. It must be one JSON value of the protocol's shape,
// and printable: whatever a command writes, none of it is in there as it is.
func Result(body []byte) (target.Result, error) {
	var o outcome
	if err := errors.Join(printable(body), strictjson.Unmarshal(body, &o, room)); err != nil {
		return target.Result{}, err
	}
	return o.result(), nil
}

// Lines reads the answer of an exec in lines, and puts the pieces of each output together. Every line
// must be one JSON value of the protocol's shape, and printable; the first says that it started, the
// last is the result and has no output.
func Lines(body []byte) (target.Result, error) {
	var stdout, stderr []byte
	if !bytes.HasSuffix(body, []byte("\n")) {
		return target.Result{}, fmt.Errorf("the last of %d bytes ends no line", len(body))
	}
	all := bytes.Split(body[:max(0, len(body)-1)], []byte("\n"))
	for i, line := range all {
		var e struct {
			Type         string   `json:"type"`
			InvocationID string   `json:"invocationId,omitempty"`
			Data         []byte   `json:"data,omitempty"`
			Result       *outcome `json:"result,omitempty"`
		}
		if err := errors.Join(printable(line), strictjson.Unmarshal(line, &e, room)); err != nil {
			return target.Result{}, fmt.Errorf("line %d of %d: %w: %.200q", i+1, len(all), err, line)
		}
		last := i == len(all)-1
		switch {
		case (e.Type == "started") != (i == 0), (e.Type == "result") != last, (e.Result != nil) != last:
			return target.Result{}, fmt.Errorf("line %d of %d: type %q there", i+1, len(all), e.Type)
		case e.Type == "stdout":
			stdout = append(stdout, e.Data...)
		case e.Type == "stderr":
			stderr = append(stderr, e.Data...)
		case e.Type == "result":
			if len(e.Result.Stdout)+len(e.Result.Stderr) > 0 {
				return target.Result{}, errors.New("the last line holds output")
			}
			r := e.Result.result()
			r.Stdout, r.Stderr = stdout, stderr
			return r, nil
		case e.Type != "started" && e.Type != "heartbeat":
			return target.Result{}, fmt.Errorf("line %d of %d: type %q", i+1, len(all), e.Type)
		}
	}
	return target.Result{}, errors.New("no line")
}

// printable refuses what a terminal, or a reader of lines, could take for more than text.
func printable(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("invalid UTF-8")
	}
	if i := bytes.IndexFunc(text, Control); i >= 0 {
		return fmt.Errorf("control character %q at byte %d", text[i:min(len(text), i+4)], i)
	}
	return nil
}

// Control says whether r commands a terminal: C0, DEL or C1. U+009B begins a sequence as ESC [ does.
func Control(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }

// Stalled makes one exchange over a connection of its own, and reads nothing of the answer until
// during has returned.
func Stalled(ctx context.Context, dial Dial, r Request, during func() error) (Answer, error) {
	c, err := open(ctx, dial)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	if _, err := io.Copy(c, bytes.NewReader(append(r.Head(), r.Body...))); err != nil {
		return Answer{}, fmt.Errorf("write request: %w", err)
	}
	if err := during(); err != nil {
		return Answer{}, err
	}
	return Read(c)
}
