// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Bounds of a frame, from RUNTIME.md; inclusive.
const (
	MaxFields     = 16
	MaxNameBytes  = 256
	MaxValueBytes = 64 << 10 // of one value, and of all together
	// MaxFrameBytes is the largest frame there can be.
	MaxFrameBytes = frameHead + MaxFields*(fieldHead+MaxNameBytes) + MaxValueBytes

	frameHead = 4 + 2
	fieldHead = 2 + 4
)

// magic begins every frame, and names its version.
const magic = "HMC1"

// ErrFrame is matched by every refusal of a frame's form.
var ErrFrame = errors.New("malformed credential frame")

// Field is one named secret of a frame.
type Field struct {
	Name  string
	Value Value
}

// EncodeFrame returns the frame in a buffer of exactly its size, so that no smaller copy is left
// behind. A field that breaks its bounds is [ErrFrame].
func EncodeFrame(fields []Field) (Value, error) {
	if err := checkFields(fields); err != nil {
		return nil, err
	}
	size := frameHead
	for _, f := range fields {
		size += fieldHead + len(f.Name) + len(f.Value)
	}
	b := append(make([]byte, 0, size), magic...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(fields)))
	for _, f := range fields {
		b = binary.BigEndian.AppendUint16(b, uint16(len(f.Name)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(f.Value)))
		b = append(append(b, f.Name...), f.Value...)
	}
	return b, nil
}

// DecodeFrame decodes a whole frame. Values alias b. Everything that is not exactly one frame is
// [ErrFrame].
func DecodeFrame(b []byte) ([]Field, error) {
	if len(b) > MaxFrameBytes || len(b) < frameHead || string(b[:4]) != magic {
		return nil, fmt.Errorf("%w: head", ErrFrame)
	}
	n, b := int(binary.BigEndian.Uint16(b[4:])), b[frameHead:]
	if n > MaxFields {
		return nil, fmt.Errorf("%w: %d fields", ErrFrame, n)
	}
	fields := make([]Field, 0, n)
	for range n {
		if len(b) < fieldHead {
			return nil, fmt.Errorf("%w: cut short", ErrFrame)
		}
		name, value := int(binary.BigEndian.Uint16(b)), uint64(binary.BigEndian.Uint32(b[2:]))
		b = b[fieldHead:]
		if uint64(name)+value > uint64(len(b)) {
			return nil, fmt.Errorf("%w: cut short", ErrFrame)
		}
		end := name + int(value)
		fields = append(fields, Field{Name: string(b[:name]), Value: Value(b[name:end:end])})
		b = b[end:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last field", ErrFrame, len(b))
	}
	return fields, checkFields(fields)
}

// checkFields holds both directions to the same bounds.
func checkFields(fields []Field) error {
	if len(fields) == 0 || len(fields) > MaxFields {
		return fmt.Errorf("%w: %d fields", ErrFrame, len(fields))
	}
	total, seen := 0, map[string]bool{}
	for _, f := range fields {
		total += len(f.Value)
		switch {
		case len(f.Name) == 0 || len(f.Name) > MaxNameBytes:
			return fmt.Errorf("%w: name of %d bytes", ErrFrame, len(f.Name))
		case seen[f.Name]:
			return fmt.Errorf("%w: a name is there twice", ErrFrame)
		case len(f.Value) > MaxValueBytes || total > MaxValueBytes:
			return fmt.Errorf("%w: values of %d bytes", ErrFrame, total)
		}
		seen[f.Name] = true
	}
	return nil
}
