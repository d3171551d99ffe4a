// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrInUse says that another command works on the lab.
var ErrInUse = errors.New("the lab is in use by another command")

// Provide finds the running lab, or starts one that ends with this process, and marks it as in use. What this
// process starts from then on finds it too, by its cache. done ends the use, and takes the lab down when it was
// started here.
func Provide(ctx context.Context, out io.Writer) (l *Lab, done func() error, err error) {
	if l, err = Up(ctx, Options{Out: out, Bound: true}); err != nil {
		return nil, nil, err
	}
	down := func() error { return nil }
	if l.Fresh {
		// Its own context: an interrupt must not cut the clean-up short.
		down = func() error { return l.Down(context.WithoutCancel(ctx)) }
	}
	release, err := l.Use()
	if err != nil {
		return nil, nil, errors.Join(err, down())
	}
	if err := os.Setenv("HALLMARK_CACHE", l.Cache); err != nil {
		release()
		return nil, nil, errors.Join(err, down())
	}
	return l, func() error {
		release()
		return down()
	}, nil
}

// Use marks the lab as in use until release, or until this process ends. Any number of commands
// may use one lab at a time.
func (l *Lab) Use() (release func(), err error) { return lockUse(l.Cache, unix.LOCK_SH) }

// Unused returns [ErrInUse] while a command uses the lab of a cache; otherwise nobody can begin
// to before release. Ask before a lab is taken down that others may have found.
func Unused(cache string) (release func(), err error) { return lockUse(cache, unix.LOCK_EX) }

func lockUse(cache string, how int) (func(), error) {
	f, err := os.OpenFile(filepath.Join(cache, "lab.use"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mark lab as in use: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("mark lab as in use: %w", err)
	}
	return func() { f.Close() }, nil
}
