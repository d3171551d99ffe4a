// SPDX-License-Identifier: Apache-2.0

// Package tape is a recording, fault-injecting proxy for the Docker API over unix sockets.
//
// It owns one listening socket. It records what was asked of the engine, in order of arrival,
// and passes bytes on unchanged, upgraded connections (exec, attach) and endless streams
// (events) included. It never retries, never repairs, and asks the engine nothing by itself; a rule
// may say otherwise for one call (fault.go).
package tape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// MaxBody is the number of bytes kept of one request body.
const MaxBody = 64 << 10

// Proxy listens on a socket of its own and forwards to an engine's.
type Proxy struct {
	engine   string
	listener net.Listener
	server   *http.Server
	forward  *httputil.ReverseProxy
	idle     *http.Transport
	closing  context.Context
	end      context.CancelFunc
	held     sync.WaitGroup // calls that a fault is about

	mu       sync.Mutex
	calls    []target.TapeCall
	rules    []*rule
	upgraded map[net.Conn]struct{}
}

type rule struct {
	target.TapeRule
	match *regexp.Regexp
	seen  int
}

// Listen makes the socket at path (mode 0600; it must not exist) and serves until Close.
func Listen(path, engine string) (*Proxy, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("tape: listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("tape: restrict socket: %w", err)
	}
	p := &Proxy{engine: engine, listener: l, upgraded: map[net.Conn]struct{}{}}
	p.closing, p.end = context.WithCancel(context.Background())
	p.idle = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) },
		DisableCompression: true, // the tape passes bytes on, it does not negotiate
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine"
			r.Out.Host = r.In.Host
		},
		Transport:     p.idle,
		FlushInterval: -1, // events and logs must arrive as they happen
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go p.server.Serve(l)
	return p, nil
}

// Close ends the proxy and every connection through it. A call that was held back is not made any more.
func (p *Proxy) Close() error {
	p.end()
	err := p.server.Close()
	p.mu.Lock()
	for c := range p.upgraded {
		c.Close()
	}
	p.mu.Unlock()
	p.held.Wait()
	p.idle.CloseIdleConnections()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Since returns the calls recorded from mark on, and the mark of the next one. Status is 0
// while the engine has not answered.
func (p *Proxy) Since(mark int64) ([]target.TapeCall, int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := int64(len(p.calls))
	if mark < 0 || mark > n {
		return nil, 0, fmt.Errorf("tape: mark %d is not in 0..%d", mark, n)
	}
	return append([]target.TapeCall(nil), p.calls[mark:]...), n, nil
}

// Inject arms one fault: the Nth request that matches from now on, and those after it up to Times, go as
// the rule says. The rule is gone after that. Two rules that meet in one request: the older one acts.
func (p *Proxy) Inject(r target.TapeRule) error {
	re, err := regexp.Compile(r.Match)
	if err != nil {
		return fmt.Errorf("tape: rule: %w", err)
	}
	if err := check(r); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &rule{TapeRule: r, match: re})
	return nil
}

// Calm disarms every rule. A call that one holds back stays held.
func (p *Proxy) Calm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// ServeHTTP records one request and passes it on, or answers it with an armed fault.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := &capture{r: r.Body}
	r.Body = body
	index, fault := p.begin(r)
	body.done = func(b []byte) { p.update(index, func(c *target.TapeCall) { c.Body = b }) }
	switch {
	case fault != nil:
		p.disturb(w, r, index, *fault)
	case r.Header.Get("Upgrade") != "":
		p.upgrade(w, r, index)
	default:
		p.forward.ServeHTTP(&statusWriter{w, func(status int) {
			body.flush()
			p.update(index, func(c *target.TapeCall) { c.Status = status })
		}}, r)
		body.flush()
	}
}

// begin appends the call and decides about a fault. A rule counts every match, so that its
// Nth is well defined under concurrency.
func (p *Proxy) begin(r *http.Request) (index int, fault *target.TapeRule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	call := target.TapeCall{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery}
	kept := p.rules[:0]
	for _, rule := range p.rules {
		if (rule.Method == "" || strings.EqualFold(rule.Method, r.Method)) && rule.match.MatchString(r.URL.Path) {
			rule.seen++
			last := rule.Nth + max(rule.Times, 1) - 1
			if rule.seen >= rule.Nth && fault == nil {
				fault = &rule.TapeRule
				call.Fault, call.Held = word(rule.TapeRule), rule.Fault == target.FaultLate
			}
			if rule.seen >= last {
				continue
			}
		}
		kept = append(kept, rule)
	}
	p.rules = kept
	p.calls = append(p.calls, call)
	return len(p.calls) - 1, fault
}

func (p *Proxy) update(index int, f func(*target.TapeCall)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.calls[index])
}

func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", p.engine)
}

// upgrade passes a hijacked connection through, each direction closed by itself: a client that
// half-closes its stdin still gets the output.
func (p *Proxy) upgrade(w http.ResponseWriter, r *http.Request, index int) {
	back, err := p.dial(p.closing) // not with the caller, who may have gone from a call that is late
	if err != nil {
		http.Error(w, `{"message":"engine unreachable"}`, http.StatusBadGateway)
		return
	}
	defer back.Close()
	out := r.Clone(p.closing)
	out.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	if err := out.Write(back); err != nil {
		http.Error(w, `{"message":"engine write failed"}`, http.StatusBadGateway)
		return
	}
	r.Body.(*capture).flush()
	front, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer front.Close()
	defer context.AfterFunc(p.closing, func() { front.Close(); back.Close() })()
	p.mu.Lock()
	p.upgraded[front] = struct{}{}
	p.upgraded[back] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.upgraded, front)
		delete(p.upgraded, back)
		p.mu.Unlock()
	}()
	// The status line is peeked at, not parsed and re-encoded: the engine's bytes pass unchanged.
	head := &statusPeek{found: func(status int) { p.update(index, func(c *target.TapeCall) { c.Status, c.Held = status, false }) }}
	finished, answered := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		io.Copy(back, buffered) // bytes that arrived behind the request come first
		closeWrite(back)
		awaitGone(front, answered)
		back.Close() // an engine may keep the connection of a process that is long dead
	}()
	io.Copy(io.MultiWriter(front, head), back)
	close(answered)
	closeWrite(front)
	// The engine has ended: a client that keeps its half open has nothing more to say.
	front.SetReadDeadline(time.Now())
	<-finished
}

// awaitGone returns when the peer of c has closed it altogether, or when answered is closed. A peer that
// has only said its last word still listens: that is a hang-up of one side, poll(2).
func awaitGone(c net.Conn, answered <-chan struct{}) {
	tick := time.NewTicker(50 * time.Millisecond) // a hang-up has an event only for who polls this descriptor
	defer tick.Stop()
	for !hungUp(c) {
		select {
		case <-answered:
			return
		case <-tick.C:
		}
	}
}

func hungUp(c net.Conn) (hup bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	if err := raw.Control(func(fd uintptr) {
		set := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(set, 0)
		hup = err == nil && n == 1 && set[0].Revents&unix.POLLHUP != 0
	}); err != nil {
		return true
	}
	return hup
}

func closeWrite(c net.Conn) {
	if u, ok := c.(*net.UnixConn); ok {
		u.CloseWrite()
	}
}
