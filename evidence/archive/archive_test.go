// SPDX-License-Identifier: Apache-2.0

package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/archive"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

func good(t *testing.T) (*evidencetest.World, *evidence.Bundle, []byte) {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := archive.Write(&out, b); err != nil {
		t.Fatal(err)
	}
	return w, b, out.Bytes()
}

func TestRoundTripIsAdmitted(t *testing.T) {
	w, b, text := good(t)
	again, err := archive.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	if d := evidence.Decide(q, again); !d.Admitted {
		t.Errorf("denied after the round trip: %s", d.Detail)
	}
	if fmt.Sprint(again.Names()) != fmt.Sprint(b.Names()) {
		t.Errorf("files %q, want %q", again.Names(), b.Names())
	}
	var second bytes.Buffer
	if err := archive.Write(&second, again); err != nil || !bytes.Equal(second.Bytes(), text) {
		t.Errorf("the archive of the same bundle differs (%v)", err)
	}
}

// entry is one of a forged archive.
type entry struct {
	header tar.Header
	body   []byte
}

func file(name string, body []byte) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body)), Format: tar.FormatUSTAR}, body}
}

func forge(t *testing.T, entries []entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if err := w.WriteHeader(&e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestHostileArchivesAreRefused(t *testing.T) {
	_, b, text := good(t)
	var entries []entry
	for _, name := range b.Names() {
		data, _ := b.File(name)
		entries = append(entries, file(name, data))
	}
	if !bytes.Equal(forge(t, entries), text) {
		t.Fatal("the forge does not make the good archive")
	}
	with := func(f func(*entry)) []byte {
		c := append([]entry(nil), entries...)
		f(&c[0])
		return forge(t, c)
	}
	plus := func(e entry) []byte { return forge(t, append(append([]entry(nil), entries...), e)) }
	link := func(kind byte, to string) func(*entry) {
		return func(e *entry) {
			e.header.Typeflag, e.header.Linkname, e.header.Size, e.body = kind, to, 0, nil
		}
	}
	swapped := append([]entry(nil), entries...)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	zipped := func() []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		z.Write(text)
		z.Close()
		return out.Bytes()
	}
	blob := "blobs/sha256/" + strings.Repeat("f", 64)
	for name, tt := range map[string]struct {
		data []byte
		want evidence.Reason
	}{
		"empty":                  {nil, evidence.ReasonArchive},
		"cut in a header":        {text[:100], evidence.ReasonArchive},
		"cut in a file":          {text[:700], evidence.ReasonArchive},
		"cut before the end":     {text[:len(text)-1024], evidence.ReasonArchive},
		"one zero block":         {text[:len(text)-512], evidence.ReasonArchive},
		"zero block and another": {append(bytes.Clone(text[:len(text)-512]), bytes.Repeat([]byte{1}, 512)...), evidence.ReasonArchive},
		"trailing byte":          {append(bytes.Clone(text), 0), evidence.ReasonArchive},
		"trailing block":         {append(bytes.Clone(text), make([]byte, 512)...), evidence.ReasonArchive},
		"trailing archive":       {append(bytes.Clone(text), text...), evidence.ReasonArchive},
		"compressed":             {zipped(), evidence.ReasonArchive},
		"dot dot":                {plus(file("../x", nil)), evidence.ReasonArchive},
		"dot dot after":          {plus(file("x/../../y", nil)), evidence.ReasonFileExtra},
		"absolute":               {forge(t, []entry{file("/etc/passwd", nil)}), evidence.ReasonFileExtra},
		"unlisted":               {plus(file("zzz", nil)), evidence.ReasonFileExtra},
		"dot before the name":    {with(func(e *entry) { e.header.Name = "./" + e.header.Name }), evidence.ReasonFileExtra},
		"upper case":             {plus(file("oci-Layout", nil)), evidence.ReasonArchive},
		"twice":                  {forge(t, append([]entry{entries[0]}, entries...)), evidence.ReasonArchive},
		"out of order":           {forge(t, swapped), evidence.ReasonArchive},
		"directory": {with(func(e *entry) {
			e.header.Typeflag, e.header.Name, e.header.Size, e.body = tar.TypeDir, "blobs/", 0, nil
		}), evidence.ReasonArchive},
		"symlink":        {with(link(tar.TypeSymlink, "index.json")), evidence.ReasonArchive},
		"hard link":      {with(link(tar.TypeLink, "index.json")), evidence.ReasonArchive},
		"device":         {with(link(tar.TypeChar, "")), evidence.ReasonArchive},
		"FIFO":           {with(link(tar.TypeFifo, "")), evidence.ReasonArchive},
		"executable":     {with(func(e *entry) { e.header.Mode = 0o755 }), evidence.ReasonArchive},
		"modified later": {with(func(e *entry) { e.header.ModTime = time.Unix(1, 0) }), evidence.ReasonArchive},
		"owner":          {with(func(e *entry) { e.header.Uid = 1 }), evidence.ReasonArchive},
		"owner by name":  {with(func(e *entry) { e.header.Uname = "root" }), evidence.ReasonArchive},
		"PAX": {with(func(e *entry) {
			e.header.Format, e.header.PAXRecords = tar.FormatPAX, map[string]string{"comment": "x"}
		}), evidence.ReasonArchive},
		"PAX size":              {with(func(e *entry) { e.header.Format, e.header.PAXRecords = tar.FormatPAX, map[string]string{"X.size": "0"} }), evidence.ReasonArchive},
		"GNU":                   {with(func(e *entry) { e.header.Format = tar.FormatGNU }), evidence.ReasonArchive},
		"GNU sparse":            {kind(text, 'S'), evidence.ReasonArchive},
		"old file kind":         {kind(text, 0), evidence.ReasonArchive},
		"contiguous file":       {kind(text, '7'), evidence.ReasonArchive},
		"no evidence":           {forge(t, entries[:1]), evidence.ReasonFileGone},
		"one file too large":    {forge(t, []entry{file("index.json", make([]byte, 5<<20))}), evidence.ReasonFileSize},
		"announces a terabyte":  {announce(t, blob, 1<<40), evidence.ReasonArchive}, // ustar holds at most 8 GiB, so this header is of GNU
		"announces 8 GiB":       {announce(t, blob, 1<<33-1), evidence.ReasonFileSize},
		"announces 256 MiB":     {announce(t, blob, 256<<20), evidence.ReasonArchive}, // and ends
		"NUL in the name":       {renamed(text, "a\x00b"), evidence.ReasonArchive},
		"padding is not zero":   {padded(t, entries[0]), evidence.ReasonArchive},
		"checksum":              {flip(text, 148), evidence.ReasonArchive},
		"bit of a prefix field": {flip(text, 345), evidence.ReasonArchive},
	} {
		_, err := archive.Read(bytes.NewReader(tt.data))
		if got := evidence.ReasonOf(err); got != tt.want {
			t.Errorf("%s: %v, want reason %q", name, err, tt.want)
		}
	}
}

// kind sets the type of the first entry and mends its checksum.
func kind(text []byte, k byte) []byte {
	c := bytes.Clone(text)
	c[156] = k
	return sum(c)
}

func renamed(text []byte, name string) []byte {
	c := bytes.Clone(text)
	copy(c[:100], make([]byte, 100))
	copy(c, name)
	return sum(c)
}

// sum writes the checksum of the first header, POSIX.1-1988 ustar.
func sum(c []byte) []byte {
	copy(c[148:156], "        ")
	n := 0
	for _, b := range c[:512] {
		n += int(b)
	}
	copy(c[148:156], fmt.Sprintf("%06o\x00 ", n))
	return c
}

func flip(text []byte, at int) []byte {
	c := bytes.Clone(text)
	c[at] ^= 1
	return c
}

// announce is the header of a file of which no byte follows.
func announce(t *testing.T, name string, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}
	if err := tar.NewWriter(&out).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func padded(t *testing.T, e entry) []byte {
	t.Helper()
	text := forge(t, []entry{e})
	if len(e.body)%512 == 0 {
		t.Fatal("no padding")
	}
	return flip(text, 512+len(e.body))
}

// An archive without an end is refused at the bound, not at the end of memory.
func TestEndlessArchive(t *testing.T) {
	var names int
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		for err := error(nil); err == nil; names++ {
			h := file(fmt.Sprintf("blobs/sha256/%064x", names), nil).header
			err = out.WriteHeader(&h)
		}
	}()
	_, err := archive.Read(r)
	r.Close()
	if evidence.ReasonOf(err) != evidence.ReasonFileSize {
		t.Errorf("endless archive: %v", err)
	}
}

// Whatever is read is written again as the same bytes.
func FuzzRead(f *testing.F) {
	// Small, since the engine changes a byte here and there: a bundle of three files, and parts of it.
	var small bytes.Buffer
	b := evidence.NewBundle(map[string][]byte{
		evidence.EvidenceFile: []byte("{}"), "index.json": nil, evidence.BlobName(evidence.Digest(nil)): []byte("blob"),
	})
	if err := archive.Write(&small, b); err != nil {
		f.Fatal(err)
	}
	text := small.Bytes()
	f.Add(text)
	f.Add(text[:512])
	f.Add(append(bytes.Clone(text), 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := archive.Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := archive.Write(&out, b); err != nil || !bytes.Equal(out.Bytes(), data) {
			t.Errorf("read, and not written again as it was (%v)", err)
		}
	})
}
