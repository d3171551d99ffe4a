// SPDX-License-Identifier: Apache-2.0

// Package link is what host and guest of a virtual machine say to each other over one serial port.
//
// It owns the frames and nothing else. A frame is one byte of kind, four bytes of length, big-endian, and that many
// bytes, at most [MaxFrame]; a longer one is refused before it is read. There is one conversation for the life of a
// guest, one operation at a time, and the host asks:
//
//	guest: Hello {JSON Greeting}, once
//	host:  Put {JSON folder}, Data*, End                       guest: Done
//	host:  Get {JSON [path...]}                                guest: Data*, Done
//	host:  Run {JSON Command}                                  guest: (Stdout | Stderr)*, Exit {JSON Result}
//	guest: Beat, at any time, each [BeatPeriod]
//
// What Data carries is one tar archive. Done is empty, or says what went wrong.
package link

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Port is the name of the virtio serial port, as the guest finds it in sysfs.
const Port = "org.hallmark.control"

// Disks are those with project quota, by their serial numbers, which are the names of the file systems that the guest
// makes on them and mounts below /quota.
var Disks = []string{"ext4", "xfs"}

// MaxFrame bounds the body of a frame, in bytes.
const MaxFrame = 64 << 10

// BeatPeriod is how often a guest says that it lives, whatever else it does.
const BeatPeriod = time.Second

// Kind of a frame.
type Kind byte

// The kinds.
const (
	Hello Kind = iota + 1
	Beat
	Put
	Get
	Run
	Data
	End
	Done
	Stdout
	Stderr
	Exit
)

// Greeting is the guest's first word.
type Greeting struct {
	Kernel string `json:"kernel"` // release
	Uptime int64  `json:"uptime"` // ms since the kernel started
}

// Command is one program to run as root.
type Command struct {
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	Dir     string   `json:"dir"`
	Timeout int64    `json:"timeout"` // ms, then it and all that it started in its process group is killed
}

// Result is how a command ended.
type Result struct {
	Code     int    `json:"code"`   // exit status, -1 for a signal
	Signal   string `json:"signal"` // that ended it
	TimedOut bool   `json:"timedOut"`
	Error    string `json:"error"` // it did not start
}

// ErrFrame says that the peer does not speak this protocol.
var ErrFrame = errors.New("not a frame of this protocol")

// Conn frames a stream. Any number of goroutines may write; one reads.
type Conn struct {
	r  io.Reader
	mu sync.Mutex // one frame at a time
	w  io.Writer
}

// New frames rw.
func New(rw io.ReadWriter) *Conn { return &Conn{r: rw, w: rw} }

// Write sends one frame.
func (c *Conn) Write(k Kind, body []byte) error {
	if len(body) > MaxFrame {
		return fmt.Errorf("%w: a body of %d bytes", ErrFrame, len(body))
	}
	frame := make([]byte, 5, 5+len(body))
	frame[0] = byte(k)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(body)))
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.w.Write(append(frame, body...))
	return err
}

// WriteJSON sends one frame with v in it.
func (c *Conn) WriteJSON(k Kind, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Write(k, body)
}

// Read receives one frame.
func (c *Conn) Read() (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return 0, nil, err
	}
	k, n := Kind(head[0]), binary.BigEndian.Uint32(head[1:])
	if k < Hello || k > Exit || n > MaxFrame {
		return 0, nil, fmt.Errorf("%w: kind %d, %d bytes", ErrFrame, k, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return 0, nil, err
	}
	return k, body, nil
}

// Stream is a writer of frames of one kind, cut to what fits into one.
func (c *Conn) Stream(k Kind) io.Writer { return stream{c, k} }

type stream struct {
	c *Conn
	k Kind
}

func (s stream) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		part := p[n:min(len(p), n+MaxFrame)]
		if err := s.c.Write(s.k, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}
