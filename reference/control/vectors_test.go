// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A vector is one file of testdata/vectors: lines that begin with # say what it is, then come keys, an
// empty line, and the bytes in hexadecimal:
//
//	expect: ok       the frame is taken, and the other end writes these very bytes
//	        frame    the form is refused, before anything is allocated for its length
//	        spawn    the frame is taken and its spawn is refused (supervisor)
//	        payload  the frame is taken and its payload is refused (worker; of a look, supervisor)
//	        mac      the MAC is refused (supervisor)
//	        cut      the stream ends in the frame
//	end:    supervisor or worker: who reads it
//	seq:    place in the stream (supervisor); 0 is the first request. The challenge is 00 01 .. 1f.
//
// An unknown key or value is fatal, and so is a folder without a file. They were computed by another
// program than this package, from the text of its documentation.
type vector struct {
	name, expect, end string
	seq               uint64
	bytes             []byte
}

func vectors(t testing.TB) []vector {
	t.Helper()
	files, err := filepath.Glob("testdata/vectors/*")
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	ok := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		v, err := parseVector(filepath.Base(file), string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		list = append(list, v)
		if v.expect == "ok" {
			ok[v.end]++
		}
	}
	if ok["supervisor"] == 0 || ok["worker"] == 0 {
		t.Fatalf("%d vectors, of which good ones for each end: %v", len(list), ok)
	}
	return list
}

func parseVector(name, text string) (vector, error) {
	v := vector{name: strings.TrimSuffix(name, ".txt")}
	head, body, cut := strings.Cut(text, "\n\n")
	if !cut || v.name == name {
		return v, errors.New("no vector")
	}
	seen := map[string]bool{}
	for line := range strings.SplitSeq(head, "\n") {
		if strings.HasPrefix(line, "# ") {
			continue
		}
		key, value, _ := strings.Cut(line, ": ")
		if seen[key] {
			return v, fmt.Errorf("%s is there twice", key)
		}
		seen[key] = true
		good := false
		switch key {
		case "expect":
			v.expect = value
			good = strings.Contains(" ok frame spawn payload mac cut ", " "+value+" ")
		case "end":
			v.end, good = value, value == "supervisor" || value == "worker"
		case "seq":
			n, err := strconv.ParseUint(value, 10, 64)
			v.seq, good = n, err == nil
		}
		if !good {
			return v, fmt.Errorf("unknown key or value: %q", line)
		}
	}
	if !seen["expect"] || !seen["end"] || seen["seq"] != (v.end == "supervisor") {
		return v, errors.New("a key is missing or does not belong here")
	}
	var err error
	v.bytes, err = hex.DecodeString(strings.ReplaceAll(body, "\n", ""))
	if err == nil && len(v.bytes) == 0 {
		err = errors.New("no bytes")
	}
	return v, err
}

func TestVectorHeads(t *testing.T) {
	for _, text := range []string{"", "expect: ok\nend: worker\n\n", "expect: ok\nend: worker\n\nzz\n", "expect: maybe\nend: worker\n\n00\n", "expect: ok\nend: tenant\n\n00\n",
		"expect: ok\nend: worker\nwhy: x\n\n00\n", "expect: ok\nend: worker\nseq: 1\n\n00\n", "expect: ok\nend: supervisor\n\n00\n", "expect: ok\nexpect: ok\nend: worker\n\n00\n"} {
		if v, err := parseVector("x.txt", text); err == nil {
			t.Errorf("%q is %+v", text, v)
		}
	}
}

// challenge is that of the vectors.
func challenge() (c [ChallengeSize]byte) {
	for i := range c {
		c[i] = byte(i)
	}
	return c
}

// TestVectorsAtTheSupervisor reads requests as PID 1 does, and writes the good ones as the worker does.
func TestVectorsAtTheSupervisor(t *testing.T) {
	for _, v := range vectors(t) {
		if v.end != "supervisor" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			k := &Conn{conn: script{bytes.NewReader(v.bytes)}, accepted: time.Now(), verify: hmac.Equal, seq: v.seq, challenge: challenge()}
			var f Frame
			var err error
			n := allocatedBy(func() { f, err = k.Receive() })
			if got := outcomeOf(err); got != v.expect && (v.expect != "spawn" && v.expect != "payload" || err != nil) {
				t.Fatalf("%v, want %s", err, v.expect)
			}
			if v.expect == "frame" && n > 4<<10 {
				t.Errorf("%d bytes were allocated for a frame that was refused", n)
			}
			if err != nil {
				return
			}
			c := challenge()
			if again := AppendRequest(nil, &c, v.seq, f); !bytes.Equal(again, v.bytes) {
				t.Errorf("the worker writes\n%x\nwant\n%x", again, v.bytes)
			}
			if f.Type == Look {
				paths, err := ParseLook(f.Payload)
				if want := v.expect == "payload"; errors.Is(err, ErrFrame) != want {
					t.Fatalf("the look: %v", err)
				}
				if err == nil && !bytes.Equal(encodeLook(paths), f.Payload) {
					t.Error("the look changes")
				}
				return
			}
			if v.expect == "payload" {
				t.Fatalf("a payload of %#x is refused as a spawn, if at all", byte(f.Type))
			}
			if f.Type != Exec && f.Type != ExecSecret {
				return
			}
			s, err := ParseSpawn(f.Type, f.Payload)
			if want := v.expect == "spawn"; errors.Is(err, ErrFrame) != want {
				t.Fatalf("the spawn: %v", err)
			}
			if err == nil && !bytes.Equal(s.Encode(), f.Payload) {
				t.Error("the spawn changes")
			}
		})
	}
}

// TestVectorsAtTheWorker reads replies as the worker does, frame by frame and by a whole client, and
// writes the good ones as PID 1 does.
func TestVectorsAtTheWorker(t *testing.T) {
	for _, v := range vectors(t) {
		if v.end != "worker" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			var f Frame
			var err error
			n := allocatedBy(func() { f, err = ReadReply(bytes.NewReader(v.bytes)) })
			if got := outcomeOf(err); got != v.expect && (v.expect != "payload" || err != nil) {
				t.Fatalf("%v, want %s", err, v.expect)
			}
			if v.expect == "frame" && n > 4<<10 {
				t.Errorf("%d bytes were allocated for a frame that was refused", n)
			}
			if err == nil {
				var sent bytes.Buffer
				if err := (&Conn{conn: recording{script{}, &sent}}).Send(f); err != nil || !bytes.Equal(sent.Bytes(), v.bytes) {
					t.Errorf("the supervisor writes %x, %v", sent.Bytes(), err)
				}
				if err := reencoded(f); (err != nil) != (v.expect == "payload") {
					t.Errorf("the payload: %v", err)
				}
			}
			// A client whose request 2 is an exec, 1 a ping and 3 asks for both kinds of figures ends with every
			// broken one. One that is good goes where it belongs.
			if v.expect != "ok" {
				client := &Client{rw: script{bytes.NewReader(v.bytes)}, calls: map[uint64]*call{
					1: {want: Pong, done: make(chan struct{})},
					2: {want: Result, budget: 8, sink: func(uint8, []byte) {}, sent: [2]uint64{2, 0}, done: make(chan struct{})},
				}, done: make(chan struct{})}
				client.readLoop()
				if err := client.Err(); !errors.Is(err, ErrLost) {
					t.Errorf("the client ends with %v", err)
				}
			}
		})
	}
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrMAC):
		return "mac"
	case errors.Is(err, ErrFrame):
		return "frame"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "cut"
	}
	return err.Error()
}

// recording is a connection whose written bytes are kept.
type recording struct {
	script
	to io.Writer
}

func (r recording) Write(b []byte) (int, error) { return r.to.Write(b) }

// allocatedBy is how many bytes f allocated on the heap. Nothing else may run meanwhile.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
