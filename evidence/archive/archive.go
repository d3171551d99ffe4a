// SPDX-License-Identifier: Apache-2.0

// Package archive is the form in which a bundle travels as one file: a tar archive of which every
// byte follows from the bundle's files.
//
// The archive is POSIX ustar, not compressed. Its entries are the bundle's files in the order of
// their names, with no directories among them: regular files of mode 0644, owned by 0:0 without
// names, modified at 1970-01-01. Two zero blocks end it, and nothing follows. Anything else is
// refused, whatever another reader would make of it: a link, a device, a sparse file, a name with
// "..", a second file of one name, an entry out of order, a compressed archive, trailing data.
//
// It owns the bytes of the archive. It never writes below a path that an archive names: [Read] gives
// a bundle in memory, and what the bundle says is for the gate to judge.
package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// MediaType names the format.
const MediaType = "application/vnd.hallmark.evidence.v1+tar"

const block = 512 // bytes

// Write writes the archive of b.
func Write(w io.Writer, b *evidence.Bundle) error {
	t := tar.NewWriter(w)
	for _, name := range b.Names() {
		data, _ := b.File(name)
		if err := t.WriteHeader(header(name, int64(len(data)))); err != nil {
			return fmt.Errorf("write archive: %w", err)
		}
		if _, err := t.Write(data); err != nil {
			return fmt.Errorf("write archive: %w", err)
		}
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

func header(name string, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, Format: tar.FormatUSTAR}
}

// refuse is a *evidence.Denied of bytes that are not the archive of any bundle.
func refuse(format string, args ...any) error {
	return &evidence.Denied{Reason: evidence.ReasonArchive, Detail: fmt.Sprintf(format, args...)}
}

// Read reads an archive to the end of r, within the bounds of a bundle. Errors are *evidence.Denied of
// step 1, or of the reading.
func Read(r io.Reader) (*evidence.Bundle, error) {
	files := map[string][]byte{}
	last, total := "", int64(0)
	for {
		name, size, err := next(r)
		if err != nil {
			return nil, err
		}
		if name == "" {
			break
		}
		if name <= last {
			return nil, refuse("%q after %q", name, last)
		}
		limit, err := evidence.FileLimit(name)
		if err != nil {
			return nil, err
		}
		if size > min(limit, evidence.MaxTotal-total) || len(files) == evidence.MaxFiles {
			return nil, &evidence.Denied{Reason: evidence.ReasonFileSize, Detail: fmt.Sprintf("file %d, %q, has %d bytes", len(files)+1, name, size)}
		}
		data, err := body(r, size)
		if err != nil {
			return nil, err
		}
		files[name], last, total = data, name, total+size
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		if err != nil && n == 0 {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		return nil, refuse("data after the end")
	}
	if _, ok := files[evidence.EvidenceFile]; !ok {
		return nil, &evidence.Denied{Reason: evidence.ReasonFileGone, Detail: evidence.EvidenceFile}
	}
	return evidence.NewBundle(files), nil
}

// next reads one header, and demands that it is the one that [Write] would have written for the name
// and the size in it. No name is the end.
func next(r io.Reader) (string, int64, error) {
	var b [block]byte
	if err := full(r, b[:]); err != nil {
		return "", 0, err
	}
	if b == ([block]byte{}) {
		if err := full(r, b[:]); err != nil {
			return "", 0, err
		}
		if b != ([block]byte{}) {
			return "", 0, refuse("one zero block")
		}
		return "", 0, nil
	}
	// One block, so that no extension header is followed to another.
	h, err := tar.NewReader(bytes.NewReader(b[:])).Next()
	if err != nil {
		return "", 0, refuse("header: %v", err)
	}
	var again bytes.Buffer
	if err := tar.NewWriter(&again).WriteHeader(header(h.Name, h.Size)); err != nil || !bytes.Equal(again.Bytes(), b[:]) {
		return "", 0, refuse("header of %q", h.Name)
	}
	if strings.Contains(h.Name, "\x00") || h.Size < 0 {
		return "", 0, refuse("header of %q", h.Name)
	}
	return h.Name, h.Size, nil
}

// body reads size bytes and the zeros behind them. Memory grows with what arrives, not with what a
// header announces.
func body(r io.Reader, size int64) ([]byte, error) {
	var data bytes.Buffer
	n, err := io.CopyN(&data, r, size)
	if n < size {
		return nil, cut(err)
	}
	padding := make([]byte, -size&(block-1))
	if err := full(r, padding); err != nil {
		return nil, err
	}
	if len(bytes.Trim(padding, "\x00")) != 0 {
		return nil, refuse("padding")
	}
	return data.Bytes(), nil
}

func full(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	return cut(err)
}

// cut turns the end of the data into a refusal.
func cut(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refuse("cut short")
	}
	return fmt.Errorf("read archive: %w", err)
}
