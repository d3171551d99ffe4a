// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"path"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// openWindow is how many directories of one branch are open at once. Those above are closed and
	// opened again on the way back, so that depth costs a few bytes and no descriptors.
	openWindow = 96
	// direntBuffer is the piece in which a directory is read, in bytes: 600 to 1,300 usual names.
	direntBuffer = 32 << 10
	// workers look at files while the walk goes on: a file has few instructions and many waits for a
	// lock or the log. A job has at most jobFiles of one directory, which stays open until they are seen;
	// jobsWaiting bounds how many.
	workers     = 4
	jobFiles    = 128
	jobsWaiting = 16
	// alone is up to how many files of a piece are not worth a job.
	alone = 32
	// nameLimit bounds the path in an error, in bytes; its end is kept.
	nameLimit = 512
)

// dirent is one entry of a directory. Its name ends in NUL and lies in the buffer of the directory.
type dirent struct {
	ino  uint64
	name []byte
	kind *uint8 // d_type
}

func (d dirent) text() string { return string(d.name[:len(d.name)-1]) }

// visitor is one pass over a tree.
type visitor interface {
	// directory sees each directory, the root first, before its entries are read. path is O_PATH,
	// fd is readable; both are the pass's until it returns.
	directory(path, fd int, st *unix.Statx_t) error
	// file sees every name of everything else. Calls are concurrent with each other and with the rest.
	file(dir int, d dirent) error
	// left sees each directory after its entries, with their digest.
	left(ino, digest uint64) error
}

// tree is a workspace that is walked, again and again. Not safe for concurrent use.
type tree struct {
	proc     procfs
	root     int // O_PATH
	mount    int // the same, readable: for file handles
	mountID  int32
	form     int32 // of file handles on this mount
	rootStat unix.Statx_t
	// byName says that the kernel has file_getattr(2) and file_setattr(2), Linux 6.17.
	byName bool
	seed   maphash.Seed

	stack []frame
	jobs  chan job
	free  chan *piece // not used at the moment

	mu     sync.Mutex
	first  error // of a job
	failed atomic.Bool
}

// piece is a part of a directory as getdents64(2) gave it. Names in jobs lie in it.
type piece struct {
	buf  []byte
	refs atomic.Int32
}

// openDir is a directory that is closed when neither the walk nor a job needs it.
type openDir struct {
	fd   int
	refs atomic.Int32
}

func (d *openDir) release() {
	if d.refs.Add(-1) == 0 {
		unix.Close(d.fd)
	}
}

// job is files of one directory that a worker looks at.
type job struct {
	dir   *openDir
	piece *piece
	where string // the directory's path, for errors
	files []dirent
}

// frame is one directory of the branch that the walk is in.
type frame struct {
	dir    *openDir // nil: closed for the time being
	ino    uint64
	name   []byte // in its parent, with NUL
	piece  *piece
	rest   []byte // of piece: not seen yet
	cookie int64  // d_off of the last entry that was seen
	skip   int    // entries after cookie that are counted already, but for the directories in them
	digest uint64
}

// openTree takes a tree whose root is dir/name.
func openTree(dir int, name string) (*tree, error) {
	n, err := unix.BytePtrFromString(name)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	root, err := openat2(dir, n, unix.O_PATH|unix.O_DIRECTORY, resolveChild)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	t := &tree{proc: -1, root: root, mount: -1, seed: maphash.MakeSeed()}
	if err := t.prepare(); err != nil {
		t.close()
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	return t, nil
}

func (t *tree) prepare() error {
	proc, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: open /proc/self/fd: %w", ErrTool, err)
	}
	t.proc = procfs(proc)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(proc, &fs); err != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("%w: /proc is not procfs", ErrTool)
	}
	if err := statxOf(t.root, &t.rootStat); err != nil {
		return fmt.Errorf("look at root: %w", err)
	}
	if t.mount, err = t.proc.reopen(t.root, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return fmt.Errorf("open root: %w", err)
	}
	h, id, err := handleAt(t.root, &empty[0], unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("%w: make file handle: %w", ErrTool, err)
	}
	ino, _, err := h.read()
	if err != nil {
		return err
	}
	if ino != t.rootStat.Ino {
		return fmt.Errorf("%w: the root's file handle is of inode %d instead of %d", ErrTool, ino, t.rootStat.Ino)
	}
	if fd, err := h.open(t.mount, unix.O_PATH); err != nil {
		return fmt.Errorf("%w: open file handle: %w; CAP_DAC_READ_SEARCH is needed", ErrTool, err)
	} else {
		unix.Close(fd)
	}
	t.mountID, t.form = id, h.form
	var f fileAttr
	dot := [2]byte{'.'}
	t.byName = attrAt(t.mount, &dot[0], &f) == nil
	return nil
}

func (t *tree) close() {
	for _, fd := range []int{t.root, t.mount, int(t.proc)} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// walk makes one pass. The error names the file.
func (t *tree) walk(ctx context.Context, v visitor) error {
	t.jobs, t.free = make(chan job, jobsWaiting), make(chan *piece, openWindow)
	t.first = nil
	t.failed.Store(false)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { t.work(v) })
	}
	err := t.branches(ctx, v)
	if err != nil {
		t.failed.Store(true) // what still waits is dropped
	}
	close(t.jobs)
	wg.Wait()
	for i := range t.stack {
		t.shut(&t.stack[i])
	}
	t.stack = t.stack[:0]
	if err == nil || errors.Is(err, errJob) {
		err = t.first
	}
	return err
}

// errJob says that a job has failed.
var errJob = errors.New("a job has failed")

func (t *tree) work(v visitor) {
	for j := range t.jobs {
		for _, d := range j.files {
			if t.failed.Load() {
				break
			}
			if err := v.file(j.dir.fd, d); err != nil {
				t.mu.Lock()
				if t.first == nil {
					t.first = &FileError{Path: shorten(path.Join(j.where, d.text())), Err: err}
				}
				t.mu.Unlock()
				t.failed.Store(true)
			}
		}
		j.dir.release()
		t.put(j.piece)
	}
}

func (t *tree) branches(ctx context.Context, v visitor) error {
	if err := t.enter(v, t.root, nil, t.rootStat.Ino); err != nil {
		return err
	}
	for len(t.stack) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("walk workspace: %w", err)
		}
		if t.failed.Load() {
			return errJob
		}
		if err := t.step(v); err != nil {
			return err
		}
	}
	return nil
}

// step goes down into the next directory, or leaves the one that the walk is in.
func (t *tree) step(v visitor) error {
	f := &t.stack[len(t.stack)-1]
	for {
		for len(f.rest) > 0 {
			d, off, n := parse(f.rest)
			f.rest, f.cookie = f.rest[n:], off
			if d.name == nil || *d.kind != unix.DT_DIR {
				continue
			}
			fd, err := openat2(f.dir.fd, &d.name[0], unix.O_PATH|unix.O_DIRECTORY, resolveChild)
			if err != nil {
				return t.wrap(d.text(), opening(err))
			}
			err = t.enter(v, fd, append([]byte(nil), d.name...), d.ino)
			unix.Close(fd)
			return err
		}
		t.put(f.piece) // jobs may have it
		f.piece = t.fresh()
		n, err := unix.ReadDirent(f.dir.fd, f.piece.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return t.wrap("", fmt.Errorf("list directory: %w", err))
		}
		if n == 0 {
			break
		}
		f.rest = f.piece.buf[:n]
		if err := t.files(v, f); err != nil {
			return err
		}
	}
	if err := v.left(f.ino, f.digest); err != nil {
		return t.wrap("", err)
	}
	return t.leave()
}

// enter takes the directory of an O_PATH descriptor, which stays the caller's, as the next frame.
func (t *tree) enter(v visitor, path int, name []byte, ino uint64) error {
	text := ""
	if name != nil {
		text = string(name[:len(name)-1])
	}
	var st unix.Statx_t
	err := statxOf(path, &st)
	switch {
	case err != nil:
		err = fmt.Errorf("look at directory: %w", err)
	case st.Ino != ino || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Dev_major != t.rootStat.Dev_major || st.Dev_minor != t.rootStat.Dev_minor:
		err = fmt.Errorf("%w: it is another directory", ErrChanged)
	}
	fd := -1
	if err == nil {
		if fd, err = t.proc.reopen(path, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			err = fmt.Errorf("open directory: %w", err)
		}
	}
	if err == nil {
		if err = v.directory(path, fd, &st); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return t.wrap(text, err)
	}
	dir := &openDir{fd: fd}
	dir.refs.Store(1)
	t.stack = append(t.stack, frame{dir: dir, ino: ino, name: name, piece: t.fresh()})
	if above := len(t.stack) - 1 - openWindow; above >= 0 {
		t.suspend(&t.stack[above])
	}
	return nil
}

// leave goes back to the parent, which is opened again when it was closed.
func (t *tree) leave() error {
	child := &t.stack[len(t.stack)-1]
	if len(t.stack) > 1 {
		if parent := &t.stack[len(t.stack)-2]; parent.dir == nil {
			if err := t.resume(child.dir.fd, parent); err != nil {
				return t.wrap("", err)
			}
		}
	}
	t.shut(child)
	t.stack = t.stack[:len(t.stack)-1]
	return nil
}

func (t *tree) shut(f *frame) {
	if f.dir != nil {
		f.dir.release()
		t.put(f.piece)
		f.dir, f.piece, f.rest = nil, nil, nil
	}
}

// fresh returns a piece that is not used.
func (t *tree) fresh() *piece {
	var p *piece
	select {
	case p = <-t.free:
	default:
		p = &piece{buf: make([]byte, direntBuffer)}
	}
	p.refs.Store(1)
	return p
}

// put gives a piece back, when nothing else has it.
func (t *tree) put(p *piece) {
	if p.refs.Add(-1) == 0 {
		select {
		case t.free <- p:
		default:
		}
	}
}

// suspend closes a directory. What of its piece has not been seen is read again later; the files in
// it have been, and only the directories are still to come.
func (t *tree) suspend(f *frame) {
	left := 0
	for rest := f.rest; len(rest) > 0; left++ {
		_, _, n := parse(rest)
		rest = rest[n:]
	}
	f.skip += left
	t.shut(f)
}

func (t *tree) resume(child int, f *frame) error {
	up := [3]byte{'.', '.'}
	fd, err := openat2(child, &up[0], unix.O_RDONLY|unix.O_DIRECTORY, resolveParent)
	if err != nil {
		return fmt.Errorf("%w: open its parent: %w", ErrChanged, err)
	}
	var st unix.Statx_t
	err = statxOf(fd, &st)
	if err == nil && (st.Ino != f.ino || st.Dev_major != t.rootStat.Dev_major || st.Dev_minor != t.rootStat.Dev_minor) {
		err = fmt.Errorf("%w: it was moved", ErrChanged)
	}
	if err == nil {
		_, err = unix.Seek(fd, f.cookie, unix.SEEK_SET)
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("open its parent: %w", err)
	}
	f.dir, f.piece = &openDir{fd: fd}, t.fresh()
	f.dir.refs.Store(1)
	return nil
}

// files lets the pass see the files of a piece that was just read, and adds its entries to the digest.
func (t *tree) files(v visitor, f *frame) error {
	var all []dirent
	for rest := f.rest; len(rest) > 0; {
		d, _, n := parse(rest)
		raw := rest[:n]
		rest = rest[n:]
		if d.name == nil {
			if f.skip > 0 {
				f.skip--
			}
			continue
		}
		if *d.kind == unix.DT_UNKNOWN { // a filesystem without types in its directories
			var st unix.Statx_t
			if err := statxAt(f.dir.fd, &d.name[0], unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, &st); err != nil {
				return t.wrap(d.text(), fmt.Errorf("%w: %w", ErrChanged, err))
			}
			*d.kind = uint8(st.Mode & unix.S_IFMT >> 12) // IFTODT of dirent.h
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		var h maphash.Hash
		h.SetSeed(t.seed)
		h.Write(raw[:8])
		h.WriteByte(*d.kind)
		h.Write(d.name)
		f.digest += h.Sum64()
		if *d.kind != unix.DT_DIR {
			all = append(all, d)
		}
	}
	if len(all) <= alone {
		for _, d := range all {
			if err := v.file(f.dir.fd, d); err != nil {
				return t.wrap(d.text(), err)
			}
		}
		return nil
	}
	where := t.path("")
	for len(all) > 0 {
		n := min(len(all), jobFiles)
		f.dir.refs.Add(1)
		f.piece.refs.Add(1)
		t.jobs <- job{f.dir, f.piece, where, all[:n]}
		all = all[n:]
	}
	return nil
}

// parse reads one struct linux_dirent64, see getdents64(2): u64 d_ino, s64 d_off, u16 d_reclen,
// u8 d_type, d_name. The name is nil for "." and "..".
func parse(b []byte) (d dirent, off int64, n int) {
	n = int(binary.NativeEndian.Uint16(b[16:]))
	off = int64(binary.NativeEndian.Uint64(b[8:]))
	name := b[19:n]
	for i, c := range name {
		if c == 0 {
			name = name[:i+1]
			break
		}
	}
	if s := name[:len(name)-1]; string(s) == "." || string(s) == ".." {
		return dirent{}, off, n
	}
	return dirent{ino: binary.NativeEndian.Uint64(b), kind: &b[18], name: name}, off, n
}

// opening says what an openat2(2) of a name that was just listed has met.
func opening(err error) error {
	switch err {
	case unix.EXDEV:
		return fmt.Errorf("%w: a mount point", ErrForeign)
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EAGAIN:
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return fmt.Errorf("open: %w", err)
}

// wrap adds where the walk is to an error that does not say so yet.
func (t *tree) wrap(name string, err error) error {
	var named *FileError
	if errors.As(err, &named) {
		return err
	}
	return &FileError{Path: t.path(name), Err: err}
}

// path is where name is, below the root. The beginning of one that is long is left out.
func (t *tree) path(name string) string {
	p := name
	for i := len(t.stack) - 1; i > 0 && len(p) < nameLimit; i-- {
		f := &t.stack[i]
		p = path.Join(string(f.name[:len(f.name)-1]), p)
	}
	if p == "" {
		return "."
	}
	return shorten(p)
}

func shorten(p string) string {
	if len(p) > nameLimit {
		return "…" + p[len(p)-nameLimit:]
	}
	return p
}

// FileError says which file of a workspace an error is about. Path is relative to the workspace, and
// may be whatever a tenant made of it: it is quoted in the text.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%q: %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }
