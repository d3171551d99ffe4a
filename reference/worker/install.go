// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Installed is a helper's content-addressed copy.
type Installed struct {
	Path   string // dir/sha256-<hex>, owned by this user, mode 0555
	Digest string
}

// InstallHelper copies source into dir under its digest and returns the copy. The digest is of
// the bytes that were written, so that what is checked is what is run or mounted, whatever
// happens to source later. An earlier copy is reused only after its bytes, owner and mode held.
// What a start that was cut off left in dir is removed first: the caller holds dir alone.
func InstallHelper(dir, source string) (Installed, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Installed{}, fmt.Errorf("make helper directory: %w", err)
	}
	if err := removeHalfCopies(dir); err != nil {
		return Installed{}, err
	}
	in, err := os.Open(source)
	if err != nil {
		return Installed{}, fmt.Errorf("open helper: %w", err)
	}
	defer in.Close()
	digest, err := digestOf(in)
	if err != nil {
		return Installed{}, err
	}
	if have := installed(dir, strings.TrimPrefix(digest, api.DigestPrefix)); have.Verify() == nil {
		return have, nil
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return Installed{}, fmt.Errorf("read helper again: %w", err)
	}
	tmp, err := os.CreateTemp(dir, halfCopy+"*")
	if err != nil {
		return Installed{}, fmt.Errorf("copy helper: %w", err)
	}
	defer os.Remove(tmp.Name()) // of no effect after the rename
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(tmp, sum), in)
	if err == nil {
		err = tmp.Chmod(0o555)
	}
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return Installed{}, fmt.Errorf("copy helper %s: %w", source, err)
	}
	out := installed(dir, hex.EncodeToString(sum.Sum(nil))) // of what was copied, whatever was read before
	if err := os.Rename(tmp.Name(), out.Path); err != nil {
		return Installed{}, fmt.Errorf("place helper: %w", err)
	}
	return out, out.Verify()
}

// halfCopy begins the names of copies that are not whole yet.
const halfCopy = ".new-"

func removeHalfCopies(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list helper directory: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), halfCopy) && e.Type().IsRegular() {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove half a copy: %w", err)
			}
		}
	}
	return nil
}

func installed(dir, hexSum string) Installed {
	return Installed{Path: filepath.Join(dir, "sha256-"+hexSum), Digest: api.DigestPrefix + hexSum}
}

// Verify reads the copy again.
func (i Installed) Verify() error {
	fd, err := unix.Open(i.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open helper copy: %w", err)
	}
	f := os.NewFile(uintptr(fd), i.Path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat helper copy: %w", err)
	}
	if st.Mode != unix.S_IFREG|0o555 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("helper copy has owner %d and mode %#o", st.Uid, st.Mode)
	}
	digest, err := digestOf(f)
	if err != nil {
		return err
	}
	if digest != i.Digest {
		return fmt.Errorf("helper copy %s has digest %s", i.Path, digest)
	}
	return nil
}

// OwnDigest is the digest of the executable that is running, read through the kernel's link
// and not by a path that could have been replaced (proc_pid_exe(5)).
func OwnDigest() (string, error) { return FileDigest("/proc/self/exe") }

// FileDigest is the digest of a file's bytes.
func FileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digestOf(f)
}

func digestOf(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	return digestText(sum), nil
}

// digestText is the digest of what sum has seen, as the wire writes it.
func digestText(sum hash.Hash) string { return api.DigestPrefix + hex.EncodeToString(sum.Sum(nil)) }
