// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
)

// logFile is where the log goes: standard error, or a file that SIGHUP opens anew, as logrotate(8)
// wants it after it has renamed the old one. A line that cannot be written is counted and gone: a
// full disk must not stop requests.
type logFile struct {
	path string // "" for standard error
	lost atomic.Uint64

	mu sync.Mutex
	w  io.WriteCloser // guarded by mu
}

func openLogFile(path string) (*logFile, error) {
	l := &logFile{path: path, w: os.Stderr}
	if path == "" {
		return l, nil
	}
	f, err := l.open()
	if err != nil {
		return nil, err
	}
	l.w = f
	return l, nil
}

func (l *logFile) open() (*os.File, error) {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// Write implements [io.Writer]; slog calls it once for each line.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.w.Write(p)
	if err != nil {
		l.lost.Add(1)
	}
	return n, err
}

// reopen opens the path again. When that fails the old file stays in use.
func (l *logFile) reopen() error {
	if l.path == "" {
		return nil
	}
	f, err := l.open()
	if err != nil {
		return err
	}
	l.mu.Lock()
	old := l.w
	l.w = f
	l.mu.Unlock()
	return old.Close()
}

// Close implements [io.Closer].
func (l *logFile) Close() error {
	if l.path == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Close()
}

// openLog opens the log and follows SIGHUP until end is called.
func openLog(path string) (log *slog.Logger, file *logFile, end func() error, err error) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP) // first of all: its default action would end the worker
	if file, err = openLogFile(path); err != nil {
		signal.Stop(hup)
		return nil, nil, nil, err
	}
	log = slog.New(slog.NewJSONHandler(file, nil))
	hello := func(message string) {
		log.Info(message, "version", buildinfo.Version, "commit", buildinfo.Commit(), "tree", buildinfo.TreeState(), "pid", os.Getpid())
	}
	hello("hallmark-worker")
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
			}
			if err := file.reopen(); err != nil {
				log.Error("the log could not be opened again", "err", err)
				continue
			}
			hello("log opened again")
		}
	}()
	return log, file, func() error {
		signal.Stop(hup)
		stop()
		<-done
		return errors.Join(file.Close())
	}, nil
}
