// SPDX-License-Identifier: Apache-2.0

package ou

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/emit"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// OU04 writes what text-minded programs change.
var OU04 = conformance.Case{
	ID: "OU-04", Revision: 1, Title: "Bytes integrity",
	Requirement: "Output comes back byte for byte up to the cut, wherever that lies; it never becomes part of the answer's own syntax, and never reaches the runtime's logs.",
	Threat:      "A decoder replaces or drops bytes, a command writes its own answer, or the operator's terminal obeys a tenant.",
	Attack:      "Every pair of two bytes, NUL, every kind of invalid UTF-8, escape sequences of terminals, lines that look like the answer's own, and random bytes, on both streams in blocks of odd sizes; a stream of four-byte characters cut after each of their bytes; where there is a wire, all of it in both forms of the answer.",
	Witness:     "Bytes that came back and were compared (at least 250,000), cuts within a character (3).",
	Oracle:      "The host's own copy of the file; the raw text of the answer, read by the suite's own strict reader; the runtime's log files.",
	Precedent:   "inspect_ai#3534",
	Tier:        conformance.Full, Control: true, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Oracles:  []conformance.Oracle{conformance.OracleReply},
	Kills:    []conformance.Kill{{Mutant: "m09", Reason: "bytes-unaccounted"}, {Mutant: "m85", Reason: "output-missing"}, {Mutant: "m88", Reason: "escape-in-log"}, {Mutant: "m89", Reason: "bytes-differ"}},
	Run:      runOU04,
}

// ou04Texts are the short ones of the content.
var ou04Texts = []string{
	"\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]52;c;aGFsbG1hcms=\x07", "\x1b]8;;file:///etc/shadow\x1b\\link\x1b]8;;\x1b\\", "\x1bP+q544e\x1b\\", "\x1b[6n", "\x9b31m", "\u009b31m", // terminals
	"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80\xed\xb0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xfe\xff", "\xff\xfe", "\xe2\x82", "\x80", // no UTF-8
	"\ufeff", "\ufffd", "\ufffe", "\u2028\u2029", "\u202e", "e\u0301", "\U0001f600", // text that is not what it was when it is normalised
	"\r\n", "\n\r", "\n\n", "\x1a", "\x04", "\x00", "\x00\x00\x00\x00\x00\x00\x00\x01", // line ends, ends of files, frames
	"\"}\n{\"type\":\"result\",\"result\":{\"exitCode\":0}}\n", "data: {}\n\n", "</pre><script>", `\u0000\n\"`, "\"", "\\", "%s%n", // other syntaxes
}

func runOU04(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	var content bytes.Buffer
	for _, text := range ou04Texts {
		content.WriteString(text)
	}
	content.WriteString(t.Canary("output"))
	for i := range 256 * 256 {
		content.Write([]byte{byte(i >> 8), byte(i)})
	}
	if _, err := io.CopyN(&content, rand.Reader, 10_007); err != nil {
		return err
	}
	logs, err := ou04Logs(t)
	if err != nil {
		return err
	}
	t.NeedWitness("bytes-compared", 250_000)
	t.NeedWitness("cuts-within-a-character", 3)

	// Attack and verdict: all of it, on both streams.
	size := int64(content.Len())
	if err := emit.Place(ctx, sb, content.Bytes()); err != nil {
		return err
	}
	whole := emit.Script{Content: content.Bytes(), Steps: []emit.Step{{FD: 1, Length: size, Block: 977}, {FD: 2, Length: size, Block: 4093}, {FD: 12, From: 1, Length: 4001, Block: 7}}}
	if err := ou04Compare(ctx, t, sb, "whole", program, whole, whole.Total()); err != nil {
		return err
	}

	// The cut, after each byte of a character. The file is another one now.
	clef := bytes.Repeat([]byte("\U0001d11e"), 1000)
	if err := emit.Place(ctx, sb, clef); err != nil {
		return err
	}
	for _, over := range []int64{1, 2, 3} {
		cut := emit.Script{Content: clef, Steps: []emit.Step{{FD: 1, Length: 3000, Block: 4}}}
		if err := ou04Compare(ctx, t, sb, fmt.Sprintf("cut after %d of 4 bytes", over), program, cut, 2000+over); err != nil {
			return err
		}
		t.Witness("cuts-within-a-character", 1)
	}

	// The logs.
	for path, from := range logs {
		text, err := ou04Since(path, from)
		if err != nil {
			return err
		}
		if !utf8.Valid(text) {
			t.Fail("escape-in-log", "a log of the runtime is no UTF-8 any more: %.300q", text)
		}
		for line := range bytes.Lines(text) {
			if i := bytes.IndexFunc(bytes.TrimRight(line, "\n"), wire.Control); i >= 0 {
				t.Fail("escape-in-log", "a line of the runtime's log holds a control character: %.300q", line[max(0, i-40):])
			}
		}
		for _, text2 := range [][]byte{[]byte("<script>"), []byte("hmcanary")} {
			if bytes.Contains(text, text2) {
				t.Fail("output-in-log", "a log of the runtime holds output of the command: %q", text2)
			}
		}
		t.Observe("log bytes", len(text))
	}
	return nil
}

// ou04Compare runs a script by every way that the target has, and compares.
func ou04Compare(ctx context.Context, t *conformance.T, sb target.Sandbox, name, program string, s emit.Script, budget int64) error {
	const timeout = 20 * time.Second
	judge := func(how string, res target.Result) {
		t.Witness("bytes-compared", int64(len(res.Stdout)+len(res.Stderr)))
		for _, d := range s.Differences(res, budget) {
			t.Fail(d.Reason, "%s, %s: %s", name, how, d.Text)
		}
		if res.ExitCode != 0 {
			t.Fail("output-ended-the-exec", "%s, %s: exit code %d", name, how, res.ExitCode)
		}
	}
	o := attack.Run(ctx, sb, target.Command{Argv: s.Argv(program), MaxOutput: budget, Timeout: timeout})
	if err := o.Trouble(); err != nil {
		return err
	}
	if o.Err != nil {
		t.Fail("output-ended-the-exec", "%s: %v", name, o.Err)
		return nil
	}
	judge("by the driver", o.Result)
	if t.Target().Wire == nil {
		t.Observe("wire", "the target has none")
		return nil
	}
	for _, form := range []struct {
		how  string
		ask  func(target.RawRequest) target.RawRequest
		read func([]byte) (target.Result, error)
	}{
		{"in one piece", func(r target.RawRequest) target.RawRequest { return r }, wire.Result},
		{"in lines", wire.Streamed, wire.Lines},
	} {
		id := make([]byte, 16)
		rand.Read(id)
		a, err := t.Target().Wire.Raw(ctx, form.ask(wire.Run(sb, "ou04-"+hex.EncodeToString(id), s.Argv(program), timeout, budget)))
		if err != nil {
			return err
		}
		if a.Status != 200 {
			t.Fail("output-ended-the-exec", "%s, %s: status %d, code %s", name, form.how, a.Status, a.Code)
			continue
		}
		res, err := form.read(a.Body)
		if err != nil {
			t.Fail("answer-malformed", "%s, %s: %v", name, form.how, err)
			continue
		}
		judge(form.how, res)
	}
	return nil
}

// ou04Logs are the runtime's log files and their sizes; none where it has no files.
func ou04Logs(t *conformance.T) (map[string]int64, error) {
	if t.Target().Observer == nil {
		return nil, nil
	}
	paths, err := t.Target().Observer.Logs()
	if errors.Is(err, target.ErrUnavailable) {
		t.Observe("logs", "the target names none")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			sizes[path] = st.Size()
		} else {
			sizes[path] = 0
		}
	}
	return sizes, nil
}

// ou04Since reads what a log file gained, at most 16 MiB.
func ou04Since(path string, from int64) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, from, 16<<20))
}
