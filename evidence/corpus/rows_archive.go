// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/archive"
)

// member is one entry of a forged archive.
type member struct {
	tar.Header
	body []byte
}

func fileMember(name string, body []byte) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body)), Format: tar.FormatUSTAR}, body}
}

// archived gives the bundle as an archive, with other bytes.
func archived(f func(text []byte) ([]byte, error)) func(*draft) {
	return func(d *draft) {
		d.archive = func(b *evidence.Bundle) ([]byte, error) {
			var text bytes.Buffer
			if err := archive.Write(&text, b); err != nil {
				return nil, err
			}
			return f(text.Bytes())
		}
	}
}

// members gives the bundle as an archive of other entries. f gets those of the good one, whose first is
// the manifest's blob or another, and whose last is oci-layout.
func members(f func([]member) []member) func(*draft) {
	return func(d *draft) {
		d.archive = func(b *evidence.Bundle) ([]byte, error) {
			var list []member
			for _, name := range b.Names() {
				data, _ := b.File(name)
				list = append(list, fileMember(name, data))
			}
			var text bytes.Buffer
			w := tar.NewWriter(&text)
			for _, m := range f(list) {
				err := w.WriteHeader(&m.Header)
				if err == nil {
					_, err = w.Write(m.body)
				}
				if err != nil {
					return nil, fmt.Errorf("forge %q: %w", m.Name, err)
				}
			}
			err := w.Close()
			return text.Bytes(), err
		}
	}
}

// last changes the last entry, oci-layout.
func last(f func(*member)) func(*draft) {
	return members(func(list []member) []member {
		f(&list[len(list)-1])
		return list
	})
}

func more(list ...member) func(*draft) {
	return members(func(have []member) []member { return append(have, list...) })
}

// instead puts something without a body in the place of oci-layout.
func instead(kind byte, to string) func(*draft) {
	return last(func(m *member) { m.Typeflag, m.Linkname, m.Size, m.body = kind, to, 0, nil })
}

// header edits the first header and mends its checksum (POSIX.1-1988 ustar, bytes 148 to 155).
func header(f func([]byte)) func(*draft) {
	return archived(func(text []byte) ([]byte, error) {
		f(text)
		copy(text[148:156], "        ")
		n := 0
		for _, b := range text[:512] {
			n += int(b)
		}
		copy(text[148:156], fmt.Sprintf("%06o\x00 ", n))
		return text, nil
	})
}

// archiveRows are about the form in which a bundle travels as one file. What a tar reader would make of
// such a file is another bundle than its bytes say, or the same in other bytes.
func archiveRows() []row {
	const g = "Archive"
	end := func(f func([]byte) []byte) func(*draft) {
		return archived(func(text []byte) ([]byte, error) { return f(text), nil })
	}
	return []row{
		{"archive", g, "", archived(func(text []byte) ([]byte, error) { return text, nil })},
		{"archive-of-a-failure", g, evidence.ReasonCaseFailed, func(d *draft) {
			archived(func(text []byte) ([]byte, error) { return text, nil })(d)
			status(evidence.StatusFail, "escaped")(d)
		}},
		{"archive-empty", g, evidence.ReasonArchive, end(func([]byte) []byte { return nil })},
		{"archive-cut", g, evidence.ReasonArchive, end(func(b []byte) []byte { return b[:len(b)/2] })},
		{"archive-without-an-end", g, evidence.ReasonArchive, end(func(b []byte) []byte { return b[:len(b)-1024] })},
		{"archive-with-half-an-end", g, evidence.ReasonArchive, end(func(b []byte) []byte { return b[:len(b)-512] })},
		{"archive-trailing-byte", g, evidence.ReasonArchive, end(func(b []byte) []byte { return append(b, 0) })},
		{"archive-trailing-zeros", g, evidence.ReasonArchive, end(func(b []byte) []byte { return append(b, make([]byte, 512)...) })},
		{"archive-trailing-archive", g, evidence.ReasonArchive, end(func(b []byte) []byte { return append(b, b...) })},
		{"archive-compressed", g, evidence.ReasonArchive, archived(func(text []byte) ([]byte, error) { return zipped(text) })},
		{"archive-gzip-bomb", g, evidence.ReasonArchive, archived(func([]byte) ([]byte, error) { return zipped(make([]byte, 64<<20)) })},
		{"archive-order", g, evidence.ReasonArchive, members(func(m []member) []member {
			m[0], m[1] = m[1], m[0]
			return m
		})},
		{"archive-entry-twice", g, evidence.ReasonArchive, members(func(m []member) []member { return append(m, m[len(m)-1]) })},
		{"archive-entry-twice-with-other-bytes", g, evidence.ReasonArchive, members(func(m []member) []member {
			at := slices.IndexFunc(m, func(e member) bool { return e.Name == evidence.EvidenceFile })
			return slices.Insert(m, at, fileMember(evidence.EvidenceFile, []byte("{}")))
		})},
		{"archive-name-of-another-case", g, evidence.ReasonFileExtra, members(func(m []member) []member { return slices.Insert(m, 0, fileMember("OCI-Layout", nil)) })},
		{"archive-name-dot-dot", g, evidence.ReasonFileExtra, more(fileMember("p/../../evidence.sigstore.json", []byte("{}")))},
		{"archive-name-dot", g, evidence.ReasonFileExtra, members(func(m []member) []member {
			m[0].Name = "./" + m[0].Name
			return m
		})},
		{"archive-name-absolute", g, evidence.ReasonFileExtra, members(func(m []member) []member {
			return slices.Insert(m, 0, fileMember("/etc/hallmark/root.pub", []byte("x")))
		})},
		{"archive-name-nul", g, evidence.ReasonArchive, header(func(b []byte) { copy(b[:100], "blobs\x00/../../x") })},
		{"archive-name-in-two-fields", g, evidence.ReasonArchive, header(func(b []byte) {
			name := strings.TrimRight(string(b[:100]), "\x00")
			clear(b[:100])
			copy(b[:100], strings.TrimPrefix(name, "blobs/"))
			copy(b[345:500], "blobs")
		})},
		{"archive-entry-unlisted", g, evidence.ReasonFileExtra, more(fileMember("z", nil))},
		{"archive-blob-unlisted", g, evidence.ReasonFileExtra, members(func(m []member) []member {
			m = append(m, fileMember(evidence.BlobName(evidence.Digest([]byte("unlisted"))), []byte("unlisted")))
			slices.SortFunc(m, func(a, b member) int { return strings.Compare(a.Name, b.Name) })
			return m
		})},
		{"archive-blob-missing", g, evidence.ReasonFileGone, members(func(m []member) []member { return m[1:] })},
		{"archive-evidence-missing", g, evidence.ReasonFileGone, members(func(m []member) []member {
			return slices.DeleteFunc(m, func(e member) bool { return e.Name == evidence.EvidenceFile })
		})},
		{"archive-symlink", g, evidence.ReasonArchive, instead(tar.TypeSymlink, "index.json")},
		{"archive-hard-link", g, evidence.ReasonArchive, instead(tar.TypeLink, "index.json")},
		{"archive-character-device", g, evidence.ReasonArchive, instead(tar.TypeChar, "")},
		{"archive-block-device", g, evidence.ReasonArchive, instead(tar.TypeBlock, "")},
		{"archive-fifo", g, evidence.ReasonArchive, instead(tar.TypeFifo, "")},
		{"archive-directory", g, evidence.ReasonArchive, members(func(m []member) []member {
			return slices.Insert(m, 0, member{tar.Header{Typeflag: tar.TypeDir, Name: "blobs/", Mode: 0o755, Format: tar.FormatUSTAR}, nil})
		})},
		{"archive-sparse", g, evidence.ReasonArchive, header(func(b []byte) { b[156] = tar.TypeGNUSparse })},
		{"archive-contiguous", g, evidence.ReasonArchive, header(func(b []byte) { b[156] = tar.TypeCont })},
		{"archive-checksum", g, evidence.ReasonArchive, end(func(b []byte) []byte { b[148] ^= 1; return b })},
		{"archive-mode", g, evidence.ReasonArchive, last(func(m *member) { m.Mode = 0o4755 })},
		{"archive-owner", g, evidence.ReasonArchive, last(func(m *member) { m.Uid = 1000 })},
		{"archive-format-gnu", g, evidence.ReasonArchive, last(func(m *member) { m.Format = tar.FormatGNU })},
		{"archive-format-pax", g, evidence.ReasonArchive, last(func(m *member) {
			m.Format, m.PAXRecords = tar.FormatPAX, map[string]string{"comment": "x"}
		})},
		{"archive-padding", g, evidence.ReasonArchive, end(func(b []byte) []byte {
			b[len(b)-1024-1] = 1 // behind oci-layout, which does not fill its block
			return b
		})},
		{"archive-entry-too-large", g, evidence.ReasonFileSize, last(func(m *member) {
			m.body = make([]byte, 5<<20)
			m.Size = int64(len(m.body))
		})},
		{"archive-of-a-million-files", g, evidence.ReasonFileSize, members(func([]member) []member {
			var list []member
			for i := range evidence.MaxFiles + 1 { // the first that is one too many ends it, whatever follows
				list = append(list, fileMember(fmt.Sprintf("blobs/sha256/%064x", i), nil))
			}
			return list
		})},
		{"files-too-many", "Artifacts", evidence.ReasonFileSize, func(d *draft) {
			d.files = func(files map[string][]byte) {
				for i := range evidence.MaxFiles {
					files[fmt.Sprintf("blobs/sha256/%064x", i)] = nil
				}
			}
		}},
	}
}

func zipped(text []byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(text)
	return out.Bytes(), errors.Join(err, z.Close())
}

// writeArchive puts the archive in the place of the bundle's directory.
func (d *draft) writeArchive(path string, files map[string][]byte) error {
	text, err := d.archive(evidence.NewBundle(files))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
