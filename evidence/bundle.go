// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// A bundle directory holds exactly these files:
//
//	evidence.sigstore.json             signer 1
//	evidence.<n>.sigstore.json         signers 2 to 16 over the same payload
//	oci-layout, index.json             see layout.go
//	blobs/sha256/<64 hex digits>       the manifest, the empty configuration, the artifacts
const (
	evidenceFile = "evidence.sigstore.json"
	maxSigners   = 16
	maxSmallFile = 4 << 20  // oci-layout, index.json
	maxBundle    = 12 << 20 // one evidence file

	// MaxTotal bounds all files of a bundle together, in bytes; MaxFiles bounds their number.
	MaxTotal = 1 << 30
	MaxFiles = 2*MaxArtifacts + 64
)

var (
	evidenceName = regexp.MustCompile(`^evidence(\.([2-9]|1[0-6]))?\.sigstore\.json$`)
	blobPattern  = regexp.MustCompile(`^blobs/sha256/[0-9a-f]{64}$`)
)

// Depth says how much of a bundle is read and checked.
type Depth int

// AuditDepth checks everything. AdmitDepth reads the evidence files only: what the signer
// said, not the raw artifacts behind it.
const (
	AuditDepth Depth = iota
	AdmitDepth
)

// Bundle is a bundle directory in memory. It is immutable and safe for concurrent use.
type Bundle struct {
	depth Depth
	files map[string]*file
}

type file struct {
	data []byte
	sum  string // filled before the bundle is shared
}

func (f *file) digest() string { return f.sum }

func newFile(data []byte) *file { return &file{data: data, sum: Digest(data)} }

// NewBundle makes a bundle of files by their slash-separated names.
func NewBundle(files map[string][]byte) *Bundle {
	b := &Bundle{files: map[string]*file{}}
	for name, data := range files {
		b.files[name] = newFile(data)
	}
	return b
}

// Names returns the names of all files, sorted.
func (b *Bundle) Names() []string { return slices.Sorted(keysOf(b.files)) }

// File returns the contents of a file, which must not be changed.
func (b *Bundle) File(name string) ([]byte, bool) {
	f, ok := b.files[name]
	if !ok {
		return nil, false
	}
	return f.data, true
}

// With returns a copy of b in which one file has other contents; nil removes it.
func (b *Bundle) With(name string, data []byte) *Bundle {
	c := &Bundle{depth: b.depth, files: maps.Clone(b.files)}
	if data == nil {
		delete(c.files, name)
	} else {
		c.files[name] = newFile(data)
	}
	return c
}

// Write writes the files of b below dir, which must be absent or empty.
func (b *Bundle) Write(dir string) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("write bundle: %s is not empty: %w", dir, fs.ErrExist)
	}
	for _, name := range b.Names() {
		to := path.Join(dir, name)
		if err := os.MkdirAll(path.Dir(to), 0o755); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
		if err := os.WriteFile(to, b.files[name].data, 0o644); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
	}
	return nil
}

// IsEvidenceFile says whether a bundle's file of this name holds a signer's evidence.
func IsEvidenceFile(name string) bool { return isEvidenceFile(name) }

func isEvidenceFile(name string) bool { return evidenceName.MatchString(name) }

func keysOf[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

// ReadBundle reads a bundle directory within bounds, never following a symlink. What makes
// the bundle inadmissible is a *Denied of step 1; other errors are of the reading.
func ReadBundle(dir string, depth Depth) (*Bundle, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	b, err := readBundle(root, depth)
	return b, errors.Join(err, root.Close())
}

func readBundle(root *os.Root, depth Depth) (*Bundle, error) {
	b := &Bundle{depth: depth, files: map[string]*file{}}
	total, count := int64(0), 0
	err := fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if count++; count > MaxFiles {
			return deny(ReasonFileSize, "more than %d entries", MaxFiles)
		}
		if e.IsDir() {
			if depth == AdmitDepth && name != "." {
				return fs.SkipDir
			}
			if !slices.Contains([]string{".", "blobs", "blobs/sha256"}, name) {
				return deny(ReasonFileExtra, "directory %q", name)
			}
			return nil
		}
		if !e.Type().IsRegular() {
			return deny(ReasonFileKind, "%q is %s", name, e.Type())
		}
		limit, err := FileLimit(name)
		if err != nil {
			return err
		}
		if depth == AdmitDepth && !isEvidenceFile(name) {
			return nil
		}
		data, err := readBounded(root, name, min(limit, MaxTotal-total))
		if err != nil {
			return err
		}
		total += int64(len(data))
		b.files[name] = newFile(data)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if _, ok := b.files[evidenceFile]; !ok {
		return nil, deny(ReasonFileGone, "%s", evidenceFile)
	}
	return b, nil
}

// FileLimit returns the greatest size in bytes of a bundle's file with this slash-separated name.
// A name that no bundle has is a *Denied with [ReasonFileExtra].
func FileLimit(name string) (int64, error) {
	switch {
	case isEvidenceFile(name):
		return maxBundle, nil
	case name == layoutFile || name == indexFile:
		return maxSmallFile, nil
	case blobPattern.MatchString(name):
		return MaxBlob, nil
	}
	return 0, deny(ReasonFileExtra, "%q", name)
}

// readBounded is [ReadRegular], with a *Denied for what no bundle may have.
func readBounded(root *os.Root, name string, limit int64) ([]byte, error) {
	data, err := ReadRegular(root, name, limit)
	switch {
	case errors.Is(err, errNotRegular):
		return nil, deny(ReasonFileKind, "%v", err)
	case errors.Is(err, errTooLarge):
		return nil, deny(ReasonFileSize, "%v", err)
	case err != nil:
		return nil, fmt.Errorf("read bundle file: %w", err)
	}
	return data, nil
}

// EvidenceFiles returns the names of the evidence files in the order of their signers.
func (b *Bundle) EvidenceFiles() []string { return b.evidenceFiles() }

func (b *Bundle) evidenceFiles() []string {
	var names []string
	for n := range b.files {
		if isEvidenceFile(n) {
			names = append(names, n)
		}
	}
	// "evidence.sigstore.json" sorts last by bytes; by length and then bytes it is first.
	slices.SortFunc(names, func(a, c string) int {
		if len(a) != len(c) {
			return len(a) - len(c)
		}
		return strings.Compare(a, c)
	})
	return names
}
