// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// ProfileRecorder keeps the first launch profile that was observed in a state directory
// and refuses every other one: in qualification mode nothing is pinned yet, but all
// sandboxes of a run must still be launched alike. Safe for concurrent use.
type ProfileRecorder struct {
	mu    sync.Mutex
	path  string
	first []byte
}

// halfWritten begins the names of profiles that are not whole yet.
const halfWritten = ".launch-profile-"

// NewProfileRecorder uses path, which is read when it exists: a profile outlives the
// worker's restart within one run. What a process that was cut off left beside it is removed:
// the caller holds the directory alone.
func NewProfileRecorder(path string) (*ProfileRecorder, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), halfWritten) {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(path), e.Name())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("remove half a launch profile: %w", err)
	}
	first, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read launch profile: %w", err)
	}
	return &ProfileRecorder{path: path, first: first}, nil
}

// Observe records the first profile durably; a later different one is ErrLaunch. digest is
// sha256 over profile.
func (r *ProfileRecorder) Observe(digest string, profile []byte) error {
	if len(profile) == 0 || digestOf(profile) != digest {
		return errors.New("observe launch profile: digest does not match")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.first) > 0 {
		if !bytes.Equal(r.first, profile) {
			return fmt.Errorf("%w: %s differs from the first observed", ErrLaunch, digest)
		}
		return nil
	}
	if err := writeDurably(r.path, profile); err != nil {
		return fmt.Errorf("record launch profile: %w", err)
	}
	r.first = bytes.Clone(profile)
	return nil
}

func writeDurably(path string, body []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), halfWritten+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(body)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
