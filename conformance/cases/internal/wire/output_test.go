// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"
	"testing"
)

const (
	lineStarted = `{"type":"started","invocationId":"i"}` + "\n"
	lineEnd     = `{"type":"result","result":` + plainOutcome + `}` + "\n"

	plainOutcome = `{"invocationId":"i","stdout":"","stderr":"","exitCode":0,"durationMs":1,"truncated":{"stdout":true,"stderr":false,"droppedBytes":7},"descendantsKilled":0,"cleanupProven":true,"timedOut":false}`
)

func TestLinesArePutTogether(t *testing.T) {
	r, err := Lines([]byte(lineStarted + `{"type":"stdout","data":"YQ=="}` + "\n" + `{"type":"heartbeat"}` + "\n" + `{"type":"stderr","data":"Gw=="}` + "\n" + `{"type":"stdout","data":"Yg=="}` + "\n" + lineEnd))
	if err != nil || string(r.Stdout) != "ab" || string(r.Stderr) != "\x1b" || !r.TruncatedStdout || r.TruncatedStderr || r.DroppedBytes != 7 || r.ExitCode != 0 || !r.CleanupProven {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := Result([]byte(strings.Replace(plainOutcome, `"stderr":""`, `"stderr":"Gw=="`, 1))); err != nil || string(r.Stderr) != "\x1b" || r.DroppedBytes != 7 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWhatIsNoOutcomeIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "no end": lineStarted, "no line end": strings.TrimSuffix(lineStarted+lineEnd, "\n"), "no start": lineEnd,
		"two ends": lineStarted + lineEnd + lineEnd, "two starts": lineStarted + lineStarted + lineEnd, "empty line": lineStarted + "\n" + lineEnd,
		"another type": lineStarted + `{"type":"other"}` + "\n" + lineEnd, "another member": lineStarted + `{"type":"stdout","data":"YQ==","x":1}` + "\n" + lineEnd,
		"output at the end": lineStarted + strings.Replace(lineEnd, `"stdout":""`, `"stdout":"YQ=="`, 1),
		"raw escape":        lineStarted + "{\"type\":\"stdout\",\"data\":\"\x1b\"}\n" + lineEnd, "raw C1": lineStarted + "{\"type\":\"stdout\",\"data\":\"\u009b\"}\n" + lineEnd,
		"raw invalid UTF-8": lineStarted + "{\"type\":\"stdout\",\"data\":\"\xff\"}\n" + lineEnd, "carriage return": lineStarted + "{\"type\":\"heartbeat\"}\r\n" + lineEnd,
	} {
		if r, err := Lines([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for name, text := range map[string]string{
		"nothing": "", "two": plainOutcome + plainOutcome, "line end": plainOutcome + "\n", "raw byte": strings.Replace(plainOutcome, `"stdout":""`, "\"stdout\":\"\xff\"", 1),
		"raw delete": strings.Replace(plainOutcome, `"signal"`, "\"signal\x7f\"", 1) + "\x7f", "lossy text": strings.Replace(plainOutcome, `"stdout":""`, `"stdout":"�"`, 1),
	} {
		if r, err := Result([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
