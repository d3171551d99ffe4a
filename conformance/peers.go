// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// peers are the processes of one run, seen by one of them. They meet in a folder: a file there is
// whole or absent, and is never changed. A living process holds the lock on its own lock file,
// which the kernel drops with it, so that nobody waits for the dead.
type peers struct {
	dir      string
	n, total int // this process, from 1, and how many there are
	lock     *os.File
}

// What a process leaves in the folder for the others and for the parent.
const (
	markInterrupted = "interrupted"   // somebody was told to stop: nothing may be sealed
	markFailed      = "failed"        // the run does not begin; nobody waits for anybody any more
	markLost        = "target-lost"   // the target is gone; the text says how that was seen
	featuresName    = "features.json" // by process 1: what the target was seen to have
	armedName       = "armed.json"    // by process 1: how the arming went, everywhere
)

func setupName(n int) string { return fmt.Sprintf("p%d.setup.json", n) } // what process n has opened and armed
func endName(n int) string   { return fmt.Sprintf("p%d.end.json", n) }   // process n has closed its target

// pollPeriod is how often one process looks for what it awaits of another.
const pollPeriod = 20 * time.Millisecond

// joinPeers makes this process known as number n.
func joinPeers(dir string, n, total int) (*peers, error) {
	p := &peers{dir: dir, n: n, total: total}
	var err error
	if p.lock, err = os.OpenFile(p.lockFile(n), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("join the run's processes: %w", err)
	}
	// Others hold it for an instant when they look whether this process lives.
	if err := ignoringEINTR(func() error { return unix.Flock(int(p.lock.Fd()), unix.LOCK_EX) }); err != nil {
		return nil, fmt.Errorf("join the run's processes: %w", err)
	}
	if _, err := p.lock.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		return nil, fmt.Errorf("join the run's processes: %w", err)
	}
	return p, nil
}

func (p *peers) lockFile(n int) string { return filepath.Join(p.dir, fmt.Sprintf("p%d.lock", n)) }

// dead reports whether process n has joined and ended. One that has not joined yet is not dead.
func (p *peers) dead(n int) bool {
	if n == p.n {
		return false
	}
	f, err := os.Open(p.lockFile(n))
	if err != nil {
		return false
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Size() > 0
}

// put publishes v under name.
func (p *peers) put(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	tmp := filepath.Join(p.dir, fmt.Sprintf("%s.p%d", name, p.n))
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(tmp, filepath.Join(p.dir, name)); err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	return nil
}

// await reads what process from publishes under name, once it is there. It is an error when that
// process has ended without it, or the run has failed.
func (p *peers) await(ctx context.Context, from int, name string, v any) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		// Before the look: what was published last counts.
		dead := p.dead(from)
		text, failed := marked(p.dir, markFailed)
		b, err := os.ReadFile(filepath.Join(p.dir, name))
		switch {
		case err == nil:
			if err := json.Unmarshal(b, v); err != nil {
				return fmt.Errorf("decode %s: %w", name, err)
			}
			return nil
		case !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("read %s: %w", name, err)
		case failed:
			return errors.New(text)
		case dead:
			return fmt.Errorf("process %d of the suite has ended", from)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d of the suite: %w", from, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// mark leaves a word for everybody. The first one stays.
func (p *peers) mark(name, text string) error {
	f, err := os.OpenFile(filepath.Join(p.dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("mark the run %s: %w", name, err)
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// marked returns what was left in the folder dir under name.
func marked(dir, name string) (text string, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return string(b), err == nil
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
