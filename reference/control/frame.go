// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sizes of the fixed parts, in bytes.
const (
	Version       = 1
	HeaderSize    = 16
	MACSize       = sha256.Size
	ChallengeSize = 32
	// OutputMax bounds the data of one output frame.
	OutputMax = 64 << 10
	// FirstRequestMax bounds the payload of the first request of a connection.
	FirstRequestMax = 4 << 10
)

// ErrFrame is matched by every refusal of a frame's form.
var ErrFrame = errors.New("malformed frame")

// ErrMAC says that a request does not know this connection's challenge, or was replayed.
var ErrMAC = errors.New("request is not authenticated")

// Type is the kind of a frame.
type Type uint8

// The types. Requests are below 0x80.
const (
	Ping   Type = 0x01
	Exec   Type = 0x02
	Cancel Type = 0x03
	StatFS Type = 0x04
	Stats  Type = 0x05
	// ExecSecret is an exec whose command reads a secret on descriptor 3.
	ExecSecret Type = 0x06
	// Look has names of the workspace looked up inside.
	Look Type = 0x07

	Hello       Type = 0x81
	Pong        Type = 0x82
	Output      Type = 0x83
	Result      Type = 0x84
	SpawnFailed Type = 0x85
	StatFSReply Type = 0x86
	StatsReply  Type = 0x87
	Refused     Type = 0x88
	Lost        Type = 0x89
	Looked      Type = 0x8a
)

// Frame is one frame without its MAC.
type Frame struct {
	Type    Type
	Request uint64
	Payload []byte
}

// bounds returns the inclusive payload bounds of t; ok is false for an unknown type.
func bounds(t Type) (lo, hi uint32, ok bool) {
	switch t {
	case Ping, Cancel, StatFS, Stats, Pong, Lost:
		return 0, 0, true
	case Exec:
		return spawnMin, spawnMax, true
	case ExecSecret:
		return 4 + 1 + spawnMin, 4 + MaxSecret + spawnMax, true
	case Look:
		return lookMin, lookMax, true
	case Hello:
		return ChallengeSize, ChallengeSize, true
	case Output:
		return 2, 1 + OutputMax, true
	case Result:
		return resultSize, resultSize, true
	case SpawnFailed:
		return 5, 5, true
	case StatFSReply:
		return 24, 24, true
	case StatsReply:
		return 2, statsMax, true
	case Refused:
		return 1, 1, true
	case Looked:
		return 4, 4, true
	}
	return 0, 0, false
}

// header is a checked frame header.
type header struct {
	typ     Type
	length  uint32
	request uint64
}

// parseHeader refuses everything that may not be allocated for. limit lowers the type's bound.
func parseHeader(b *[HeaderSize]byte, requests bool, limit uint32) (header, error) {
	h := header{typ: Type(b[1]), length: binary.BigEndian.Uint32(b[4:]), request: binary.BigEndian.Uint64(b[8:])}
	lo, hi, ok := bounds(h.typ)
	switch {
	case b[0] != Version:
		return h, fmt.Errorf("%w: version %d", ErrFrame, b[0])
	case !ok || (h.typ < 0x80) != requests:
		return h, fmt.Errorf("%w: type %#x", ErrFrame, b[1])
	case b[2] != 0 || b[3] != 0:
		return h, fmt.Errorf("%w: reserved bytes set", ErrFrame)
	case h.length < lo || h.length > min(hi, limit):
		return h, fmt.Errorf("%w: length %d of type %#x", ErrFrame, h.length, b[1])
	case (h.typ == Hello) != (h.request == 0):
		return h, fmt.Errorf("%w: request id %d of type %#x", ErrFrame, h.request, b[1])
	}
	return h, nil
}

// Append appends f's header and payload to b.
func Append(b []byte, f Frame) []byte {
	b = append(b, Version, byte(f.Type), 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.Payload)))
	b = binary.BigEndian.AppendUint64(b, f.Request)
	return append(b, f.Payload...)
}

// AppendRequest appends f with its MAC under challenge and sequence number seq.
func AppendRequest(b []byte, challenge *[ChallengeSize]byte, seq uint64, f Frame) []byte {
	start := len(b)
	b = Append(b, f)
	sum := mac(challenge, seq, b[start:start+HeaderSize], f.Payload)
	return append(b, sum[:]...)
}

func mac(challenge *[ChallengeSize]byte, seq uint64, head, payload []byte) (sum [MACSize]byte) {
	m := hmac.New(sha256.New, challenge[:])
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], seq)
	m.Write(n[:])
	m.Write(head)
	m.Write(payload)
	m.Sum(sum[:0])
	return sum
}

// ReadReply reads one frame of the supervisor. io.EOF means that the stream ended between
// frames; io.ErrUnexpectedEOF that it ended inside one.
func ReadReply(r io.Reader) (Frame, error) { return read(r, false) }

// Replies reads the supervisor's frames from r, one after the other.
type Replies struct {
	r   io.Reader
	buf []byte
}

// NewReplies reads from r.
func NewReplies(r io.Reader) *Replies { return &Replies{r: r} }

// Next is [ReadReply] without a new buffer for each frame of output: the payload of such a frame is good
// until the next call. Any other is the caller's.
func (s *Replies) Next() (Frame, error) {
	return readInto(s.r, false, func(t Type, n uint32) []byte {
		if t != Output {
			return own(t, n)
		}
		if s.buf == nil {
			s.buf = make([]byte, 1+OutputMax)
		}
		return s.buf[:n:n]
	})
}

func own(_ Type, n uint32) []byte { return make([]byte, n) }

// ReadPlainRequest reads one request without a MAC. It is for the supervisor's own channel to
// its invoke children, which no tenant can reach, and never for the control socket.
func ReadPlainRequest(r io.Reader) (Frame, error) { return read(r, true) }

func read(r io.Reader, requests bool) (Frame, error) { return readInto(r, requests, own) }

// readInto asks room for the payload, once the header is found good.
func readInto(r io.Reader, requests bool, room func(Type, uint32) []byte) (Frame, error) {
	var head [HeaderSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	h, err := parseHeader(&head, requests, ^uint32(0))
	if err != nil {
		return Frame{}, err
	}
	f := Frame{Type: h.typ, Request: h.request, Payload: room(h.typ, h.length)}
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return Frame{}, noEOF(err)
	}
	return f, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
