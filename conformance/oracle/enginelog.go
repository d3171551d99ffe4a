// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/docker/go-units"
)

// Log is what an engine keeps of what a container's PID 1 prints.
type Log struct {
	Driver string
	// Bound is how many bytes the driver may keep, by its own options: 0 for none, [Unlimited] when
	// nothing bounds it or it leads elsewhere.
	Bound int64
}

// LogBound is [Log.Bound] of a driver and its options: of the drivers that keep files of a bounded size
// on this host, json-file has no bound of its own and local has 5 files of 20 MB.
func LogBound(driver string, options map[string]string) (int64, error) {
	size, files := Unlimited, int64(1)
	switch driver {
	case "none":
		return 0, nil
	case "json-file":
	case "local":
		size, files = 20_000_000, 5
	default:
		return Unlimited, nil
	}
	if v, ok := options["max-size"]; ok {
		n, err := units.RAMInBytes(v)
		if err != nil {
			return 0, fmt.Errorf("read max-size: %w", err)
		}
		if size = n; n <= 0 {
			size = Unlimited
		}
	}
	if v, ok := options["max-file"]; ok {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 1 {
			return 0, fmt.Errorf("max-file is %q", v)
		}
		files = n
	}
	if size >= Unlimited/files {
		return Unlimited, nil
	}
	return size * files, nil
}

// Log asks the engine for a container's log driver.
func (e *Engine) Log(ctx context.Context, id string) (Log, error) {
	in, err := e.c.ContainerInspect(ctx, id)
	if err != nil {
		return Log{}, fmt.Errorf("inspect container: %w", err)
	}
	if in.ContainerJSONBase == nil || in.HostConfig == nil {
		return Log{}, errors.New("inspect container: answer is incomplete")
	}
	bound, err := LogBound(in.HostConfig.LogConfig.Type, in.HostConfig.LogConfig.Config)
	return Log{in.HostConfig.LogConfig.Type, bound}, err
}

// WritableLayer is what the engine's disk holds for one container: its writable layer, in which a
// runtime also keeps what it writes for itself, and the folder of [Engine.ContainerFiles], as allocated. Both
// must be on this host.
func (e *Engine) WritableLayer(ctx context.Context, id string) (TreeUsage, error) {
	in, err := e.c.ContainerInspect(ctx, id)
	if err != nil {
		return TreeUsage{}, fmt.Errorf("inspect container: %w", err)
	}
	if in.ContainerJSONBase == nil || in.GraphDriver.Data["UpperDir"] == "" {
		return TreeUsage{}, fmt.Errorf("inspect container: storage driver %q tells no writable layer", in.GraphDriver.Name)
	}
	info, err := e.c.Info(ctx)
	if err != nil {
		return TreeUsage{}, fmt.Errorf("ask engine for its root: %w", err)
	}
	var sum TreeUsage
	for _, dir := range []string{in.GraphDriver.Data["UpperDir"], filepath.Join(info.DockerRootDir, "containers", id)} {
		u, err := WalkUsage(dir)
		if err != nil {
			return TreeUsage{}, err
		}
		sum.Bytes += u.Bytes
		sum.Inodes += u.Inodes
	}
	return sum, nil
}

// ContainerFiles are the sizes, in bytes, of the files that the engine keeps of one container beside its
// root filesystem: its configuration, and its log where the driver writes one. The folder is below the
// engine's root, and must be on this host.
func (e *Engine) ContainerFiles(ctx context.Context, id string) (map[string]int64, error) {
	info, err := e.c.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask engine for its root: %w", err)
	}
	dir := filepath.Join(info.DockerRootDir, "containers", id)
	sizes := map[string]int64{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir && err != nil {
			return err
		}
		if err != nil || !d.Type().IsRegular() {
			return nil // replaced while it was looked at
		}
		if st, err := os.Lstat(path); err == nil {
			name, _ := filepath.Rel(dir, path) // is below
			sizes[name] = st.Size()
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the engine's files of a container: %w", err)
	}
	if len(sizes) == 0 {
		return nil, errors.New("list the engine's files of a container: there are none")
	}
	return sizes, nil
}

// Grown is by how many bytes files grew in all; none shrinks the sum.
func Grown(before, after map[string]int64) (n int64) {
	for name, size := range after {
		n += max(0, size-before[name])
	}
	return n
}

// Heard is what PID 1 of a container printed.
type Heard struct {
	Bytes, Lines int64
	First        []string // at most eight lines, of at most 200 bytes
}

// Listen attaches to what a container's PID 1 prints from now on, whatever the log driver does with
// it. So far may be called until stop, which also ends it.
func (e *Engine) Listen(ctx context.Context, id string) (soFar func() Heard, stop func(), err error) {
	at, err := e.c.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, nil, fmt.Errorf("attach to container: %w", err)
	}
	c := &counter{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		stdcopy.StdCopy(c, c, at.Reader) // its end is the container's, or ours
	}()
	return c.heard, sync.OnceFunc(func() { at.Close(); <-done }), nil
}

// counter counts what is written to it.
type counter struct {
	mu   sync.Mutex
	h    Heard
	line []byte
}

func (c *counter) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h.Bytes += int64(len(b))
	for part := range bytes.Lines(b) {
		if room := 200 - len(c.line); room > 0 {
			c.line = append(c.line, part[:min(room, len(part))]...)
		}
		if bytes.HasSuffix(part, []byte("\n")) {
			if c.h.Lines++; len(c.h.First) < 8 {
				c.h.First = append(c.h.First, string(bytes.TrimRight(c.line, "\n")))
			}
			c.line = c.line[:0]
		}
	}
	return len(b), nil
}

func (c *counter) heard() Heard {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.h
	h.First = slices.Clone(h.First)
	return h
}
