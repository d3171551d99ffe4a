// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Types of a [Change].
const (
	Created  = "created"  // and what was known below that name is not there: what is, has a change of its own
	Modified = "modified" // content or attributes
	Removed  = "removed"
	Moved    = "moved"    // within the workspace: Path is the new name, From the old one
	Overflow = "overflow" // changes were lost, or some directory cannot be watched: list again, and list what is moved later, since a list is not of one moment
)

// Change is one change of a workspace. Paths are as other operations take them.
type Change struct {
	Type string
	Path []byte // empty for Overflow
	From []byte // Moved only
	Kind Kind   // empty where it is not known
}

// WatchLimits bound what one [Watcher] costs. Zero members take the defaults.
type WatchLimits struct {
	Directories int // watched at once, and one more for a moment; 8,192. Each costs about 0.5 KiB here and 1 KiB in the kernel
	Changes     int // waiting to be taken; 4,096
	Bytes       int // of their paths; 1 MiB
}

func (l WatchLimits) withDefaults() WatchLimits {
	for _, f := range []struct {
		have *int
		zero int
	}{{&l.Directories, 8192}, {&l.Changes, 4096}, {&l.Bytes, 1 << 20}} {
		if *f.have <= 0 {
			*f.have = f.zero
		}
	}
	return l
}

// Times of a watcher.
const (
	quietTime  = 100 * time.Millisecond // that modifications of one file are collected for
	blindTime  = 30 * time.Second       // between scans while a directory is missed
	resyncMin  = 100 * time.Millisecond // before a scan anew, doubling
	resyncMax  = 5 * time.Second
	resyncCalm = 10 * time.Second // without one, after which the next comes soon again
)

// Watcher reports the changes of a workspace, from the host, by inotify(7).
//
// What it says. After Watch has returned no change is missed without an Overflow behind it.
// Changes come in the kernel's order, which for two processes is the order of their
// effects. A directory that appears is watched at once, and what is in it by then is
// reported as created, behind the directory. A file that is written stays Modified once per 100 ms, and
// not only when it is closed: a sentry keeps files open for longer than the tenant does. Writes to shared memory mappings
// are not seen before they reach the file by another way. A rename that exchanges two names cannot be told from one that is undone at once: both are two moves and an Overflow. A directory that is renamed before it is watched is told as removed and created. [Tree.Write]
// shows as the creation of a temporary and its move where it needs one.
//
// What it does not look at. Symlinks are never followed and special files never opened. A
// directory that the tenant itself cannot read is not looked into, as for List, until it can be. A name
// whose path has more than MaxPath bytes has no path here. Another filesystem mounted below is not entered.
//
// What it costs. One instance and one watch per directory, both on the account of the
// tenant's uid (fs.inotify.max_user_instances and max_user_watches, so a host's own are not
// used up), the kernel's queue (fs.inotify.max_queued_events), one thread, and [WatchLimits].
// It works a quarter of the time at most, so that a tenant's storm takes a quarter of a core. Beyond a bound
// changes are dropped, an Overflow is reported, and watching goes on: after a scan anew where the kernel dropped them; with
// a scan and another Overflow each 30 s as long as a directory stays unwatched.
type Watcher struct {
	out    *changeQueue
	cancel context.CancelFunc
	done   chan struct{}
}

// Watch begins to watch until ctx ends or Close is called; [Tree.Close] waits for that. Its first
// scan is quiet: what is there is for List to say, after Watch.
func (t *Tree) Watch(ctx context.Context, lim WatchLimits) (*Watcher, error) {
	if err := t.begin(ctx); err != nil {
		return nil, &Error{"watch", nil, err}
	}
	th, err := newThread()
	if err != nil {
		t.end()
		return nil, &Error{"watch", nil, err}
	}
	lim = lim.withDefaults()
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{out: newChangeQueue(lim.Changes, lim.Bytes), cancel: cancel, done: make(chan struct{})}
	v := &view{t: t, lim: lim, out: w.out}
	end := func() {
		v.close()
		th.close()
		cancel()
		t.end()
	}
	if err := th.do(func() error { return v.open(ctx) }); err != nil {
		end()
		return nil, &Error{"watch", nil, err}
	}
	go func() {
		defer close(w.done)
		defer end()
		w.out.close(v.run(ctx, th))
	}()
	return w, nil
}

// Next waits for a change. Its error is ctx's, or says why watching has ended, after the
// last change. Calls must not overlap.
func (w *Watcher) Next(ctx context.Context) (Change, error) { return w.out.next(ctx) }

// Close ends watching and waits until nothing of it is left. Repeating it is harmless.
func (w *Watcher) Close() {
	w.cancel()
	<-w.done
}

// run follows the tree until ctx ends. It waits here and works on th.
func (v *view) run(ctx context.Context, th *thread) error {
	defer context.AfterFunc(ctx, func() { _ = v.file.SetReadDeadline(time.Unix(1, 0)) })()
	delay, last := resyncMin, time.Time{}
	for {
		err := v.step(ctx, th)
		for errors.Is(err, errResync) {
			if time.Since(last) > resyncCalm {
				delay = resyncMin
			}
			if err = sleep(ctx, delay); err == nil {
				delay = min(2*delay, resyncMax)
				err = th.do(func() error { return v.resync(ctx) })
			}
			last = time.Now()
		}
		if err != nil {
			return &Error{"watch", nil, err}
		}
	}
}

// step takes what the kernel has, or waits for something.
func (v *view) step(ctx context.Context, th *thread) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, err := readNow(v.fd, v.buf)
	if err != nil {
		return err
	}
	if n == 0 {
		if n, err = v.wait(ctx); err != nil {
			return err
		}
	}
	return th.do(func() error { return v.take(ctx, v.buf[:n]) })
}

// wait returns 0 when it is time for something else.
func (v *view) wait(ctx context.Context) (int, error) {
	if err := v.file.SetReadDeadline(v.alarm()); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil { // whose end may have set its deadline before ours
		return 0, err
	}
	n, err := v.file.Read(v.buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, ctx.Err()
	}
	return n, err
}

// burst is what may be worked before the share counts.
const burst = 10 * time.Millisecond

// breathe keeps this thread's share of a core at a quarter. Idle time is not saved up.
func (v *view) breathe(ctx context.Context) error {
	used, now := threadTime()-v.used, time.Now()
	passed := now.Sub(v.began)
	switch {
	case used > passed/4+burst:
		return sleep(ctx, 4*used-passed)
	case passed/4 > used+burst:
		v.used, v.began = v.used+used, now
	}
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// open makes the inotify instance and looks at the tree for the first time.
func (v *view) open(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return classed("make inotify instance", err)
	}
	v.fd, v.file = fd, os.NewFile(uintptr(fd), "inotify") // the file owns fd
	v.buf = make([]byte, 64<<10)
	v.used, v.began = threadTime(), time.Now()
	err = v.begin(ctx)
	if errors.Is(err, errResync) { // a tenant that moves everything about: an Overflow will follow
		v.blind, err = time.Now(), nil
	}
	return err
}

func (v *view) close() {
	if v.file != nil {
		_ = v.file.Close() // the watches go with it
	}
}
