// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

// Bounds of a guest.
const (
	// bootBound is from the start of the emulator to the guest's first word. It takes 10 s on a quiet host, and took a
	// minute on one with eight times as much to do as it has CPUs.
	bootBound = 5 * time.Minute
	// silenceBound is how long a guest may say nothing. It beats each second of its own clock.
	silenceBound = 2 * time.Minute
	// slowdown is how many times longer than by the guest's clock something may take by the host's. The guest's counts
	// instructions (see emulator.go), so that a busy host slows it.
	slowdown = 20
	// killBound is what the kernel gets to end a killed emulator.
	killBound = 30 * time.Second
	// maxConsole bounds the console's log, in bytes; more is read and dropped.
	maxConsole = 4 << 20
)

// ErrSilent says that the guest has stopped answering; it is ended then.
var ErrSilent = errors.New("the guest does not answer")

// ErrEnded says that the emulator has ended by itself.
var ErrEnded = errors.New("the guest has ended")

// Config of one start. The zero value is usable.
type Config struct {
	Console string // file for the console's log; "" keeps its end only

	// KernelArguments are added to the kernel's command line.
	KernelArguments []string
	Boot            time.Duration // 0 means the default of 5 minutes
	Silence         time.Duration // 0 means the default of 2 minutes
	Slowdown        int           // of the guest's clock, at most; 0 means the default of 20
}

// Machine is one running guest. One operation at a time.
type Machine struct {
	Greeting link.Greeting
	Pid      int // of the emulator

	cfg     Config
	port    *os.File
	conn    *link.Conn
	console *console
	exited  chan struct{} // closed after the next two are set
	state   string        // how the emulator has ended
	cpu     time.Duration
	kill    func()
	remove  func() error // of the emulator's folder; nil once it was called
	release func()       // lets the next guest start; nil for none
	broken  error        // an operation was cut short: nothing can follow
}

// Start starts a guest of the image and returns when it answers. Close ends it. While another guest of the cache
// runs it waits.
func Start(ctx context.Context, o Options, img Image, cfg Config) (*Machine, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	e, err := findEmulator(ctx, o)
	if err != nil {
		return nil, err
	}
	blank, err := o.blankDisk()
	if err != nil {
		return nil, err
	}
	release, err := o.lock(ctx, guestLock)
	if err != nil {
		return nil, err
	}
	defer func() { release() }()
	tmp, remove, err := o.Temp(ctx) // for the files without a name
	if err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	// "nice" becomes the emulator: the process is the same.
	args := append([]string{"-n", fmt.Sprint(niceness), e.program.Path}, e.arguments(img, blank, 3, cfg.KernelArguments)...)
	cmd := exec.Command("nice", args...)
	cmd.Env = e.environment(tmp)
	m, err := launch(ctx, cmd, remove, cfg)
	if err != nil {
		return nil, err
	}
	m.release, release = release, func() {}
	return m, nil
}

// launch starts the emulator with the control port as descriptor 3, and waits for the guest's first word. remove is
// called when the emulator is gone.
func launch(ctx context.Context, cmd *exec.Cmd, remove func() error, cfg Config) (_ *Machine, err error) {
	if cfg.Boot == 0 {
		cfg.Boot = bootBound
	}
	if cfg.Silence == 0 {
		cfg.Silence = silenceBound
	}
	if cfg.Slowdown == 0 {
		cfg.Slowdown = slowdown
	}
	m := &Machine{cfg: cfg, remove: remove, exited: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.console, err = newConsole(cfg.Console); err != nil {
		return nil, err
	}
	theirs, err := m.pair()
	if err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	cmd.Dir, cmd.ExtraFiles = "/", []*os.File{theirs}
	cmd.Stdout, cmd.Stderr = m.console, m.console
	cmd.WaitDelay = killBound // for who else holds the console
	// An interrupt at the terminal is for the program that started it, which then ends it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	err = m.run(cmd)
	theirs.Close() // the emulator has the one end of it, so that its death is the end of the conversation
	if err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	if err := m.greet(ctx); err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	return m, nil
}

// pair makes the control port's two ends. Nobody else can get at either: neither has a name.
func (m *Machine) pair() (theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil { // for deadlines
		return nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	m.port = os.NewFile(uintptr(fds[0]), "control port")
	m.conn = link.New(m.port)
	return os.NewFile(uintptr(fds[1]), "control port"), nil
}

// run starts the emulator on a thread that lives as long as it: Pdeathsig follows the thread (prctl(2)).
func (m *Machine) run(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its state says it
			m.state = cmd.ProcessState.String()
			m.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			close(m.exited)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	m.Pid = cmd.Process.Pid
	m.kill = func() { _ = cmd.Process.Kill() } // SIGKILL ends a stopped process too; one that has ended is not there
	return nil
}

// greet waits for the guest's first word.
func (m *Machine) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.Boot, fmt.Errorf("%w: it has not come up in %s", ErrSilent, m.cfg.Boot))
	defer cancel()
	kind, body, err := m.receive(ctx, m.cfg.Boot)
	if err != nil {
		return m.explain(err)
	}
	if kind != link.Hello || unmarshal(body, &m.Greeting) != nil {
		return fmt.Errorf("%w: it greets with %d", link.ErrFrame, kind)
	}
	return nil
}

// Console returns the end of what the guest's console showed, at most 2,000 bytes.
func (m *Machine) Console() string { return m.console.end() }

// explain adds the console's end, which has come when the process is gone.
func (m *Machine) explain(err error) error {
	if errors.Is(err, ErrEnded) {
		select {
		case <-m.exited:
			err = fmt.Errorf("%w: %s", err, m.state)
		case <-time.After(killBound):
		}
	}
	return fmt.Errorf("%w; its console ends: %s", err, strings.ReplaceAll(strings.TrimSpace(m.console.lines(4)), "\n", " | "))
}

// Close ends the guest, whatever state it is in, and returns when its process is gone. It is the only way to end
// one: a guest has nothing that must be written before.
func (m *Machine) Close() error {
	var errs []error
	if m.kill != nil {
		m.kill()
		select {
		case <-m.exited:
		case <-time.After(killBound):
			errs = append(errs, fmt.Errorf("the emulator, process %d, has not ended %s after it was killed", m.Pid, killBound))
		}
		m.kill = nil
	}
	if m.port != nil {
		m.port.Close()
	}
	if m.console != nil {
		errs = append(errs, m.console.Close())
	}
	if m.remove != nil {
		errs = append(errs, m.remove())
		m.remove = nil
	}
	if m.release != nil {
		m.release()
	}
	return errors.Join(errs...)
}

// CPU returns the CPU time that the emulator took, once Close has ended it; 0 before.
func (m *Machine) CPU() time.Duration {
	select {
	case <-m.exited:
		return m.cpu
	default:
		return 0
	}
}

// console keeps what the guest prints, bounded, and its end.
type console struct {
	mu   sync.Mutex
	file *os.File // nil without one
	room int
	tail []byte
}

const consoleTail = 2000

func newConsole(path string) (*console, error) {
	c := &console{room: maxConsole}
	if path == "" {
		return c, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("open console log: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("open console log: %w", err)
	}
	c.file = f
	return c, nil
}

// Write never fails: a full disk must not end the guest in a way that looks like its own fault.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail = append(c.tail, p...)
	c.tail = c.tail[max(0, len(c.tail)-consoleTail):]
	if c.file != nil && c.room > 0 {
		n := min(len(p), c.room)
		c.room -= n
		_, _ = c.file.Write(p[:n])
	}
	return len(p), nil
}

func (c *console) end() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return printable(c.tail)
}

func (c *console) lines(n int) string {
	all := strings.Split(strings.TrimSpace(c.end()), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// printable drops what would steer a terminal: a guest's console holds what the guest likes.
func printable(p []byte) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r >= ' ' && r != 0x7f && r < 0x80 {
			return r
		}
		return -1
	}, string(p))
}

func (c *console) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file = nil
	return err
}
