// SPDX-License-Identifier: Apache-2.0

package link

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Pack writes the file or folder at path into a tar archive, with its last element as the name, or as. Folders and
// regular files travel, with their permission bits; anything else is left out.
func Pack(w *tar.Writer, file, as string) error {
	if as == "" {
		as = filepath.Base(file)
	}
	return filepath.WalkDir(file, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(file, p)
		if err != nil {
			return err
		}
		return packOne(w, p, path.Join(as, filepath.ToSlash(rel)))
	})
}

func packOne(w *tar.Writer, file, name string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(st.Mode().Perm()), ModTime: st.ModTime()}
	if !st.IsDir() {
		h.Typeflag, h.Name, h.Size = tar.TypeReg, name, st.Size()
	}
	if err := w.WriteHeader(h); err != nil || st.IsDir() {
		return err
	}
	_, err = io.CopyN(w, f, h.Size)
	return err
}

// ErrTooMuch says that an archive holds more bytes than its reader takes.
var ErrTooMuch = errors.New("the archive holds more than it may")

// Unpack writes an archive into a folder, which is made, and nowhere else: names that leave it, by a symlink too,
// are refused, and so is whatever is neither a folder nor a regular file. At most limit bytes of content are taken.
func Unpack(r io.Reader, dir string, limit int64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // what pads the archive
			return err
		}
		if err != nil {
			return err
		}
		if limit -= h.Size; limit < 0 {
			return fmt.Errorf("%w: it grows with %q", ErrTooMuch, h.Name)
		}
		if err := unpackOne(root, t, h); err != nil {
			return err
		}
	}
}

func unpackOne(root *os.Root, r io.Reader, h *tar.Header) error {
	name, perm := path.Clean(h.Name), fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, perm|0o700)
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, perm)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Chmod(perm), f.Close())
	}
	return fmt.Errorf("the archive holds %q, which is neither a folder nor a regular file", h.Name)
}
