// SPDX-License-Identifier: Apache-2.0

package tape

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// maxHeld bounds the body of a request that a fault holds or repeats, in bytes.
const maxHeld = 8 << 20

// check refuses a rule that would do nothing, or something else than it says.
func check(r target.TapeRule) error {
	status, wait := false, false
	switch r.Fault {
	case target.FaultStatus, target.FaultReplaced:
		status = true
	case target.FaultStall, target.FaultLate:
		wait = true
	case target.FaultLost, target.FaultCut, target.FaultTwice:
	default:
		return fmt.Errorf("tape: rule has an unknown fault %q", r.Fault)
	}
	switch {
	case r.Nth < 1 || r.Times < 0:
		return fmt.Errorf("tape: rule needs nth >= 1 and times >= 0, not %d and %d", r.Nth, r.Times)
	case status && (r.Status < 200 || r.Status > 599) || !status && r.Status != 0:
		return fmt.Errorf("tape: fault %q with status %d; 200..599 for an answer, none without one", r.Fault, r.Status)
	case wait != (r.For > 0):
		return fmt.Errorf("tape: fault %q for %s; what waits needs a time, and nothing else does", r.Fault, r.For)
	}
	return nil
}

// word is how a fault stands on the tape.
func word(r target.TapeRule) string {
	switch r.Fault {
	case target.FaultStatus:
		return fmt.Sprintf("status-%d", r.Status)
	case target.FaultReplaced:
		return fmt.Sprintf("replaced-%d", r.Status)
	}
	return string(r.Fault)
}

// disturb does what rule says to one call. Nothing of it is repaired, and the caller is told nothing but
// what the fault makes of the answer.
func (p *Proxy) disturb(w http.ResponseWriter, r *http.Request, index int, rule target.TapeRule) {
	p.held.Add(1)
	defer p.held.Done()
	defer p.update(index, func(c *target.TapeCall) { c.Held = false }) // also when the engine did not answer
	body, err := io.ReadAll(io.LimitReader(r.Body, maxHeld+1))
	r.Body.(*capture).flush()
	if err != nil || len(body) > maxHeld {
		panic(http.ErrAbortHandler)
	}
	passed := func(status int) { p.update(index, func(c *target.TapeCall) { c.Status, c.Held = status, false }) }
	switch rule.Fault {
	case target.FaultStatus:
		passed(rule.Status)
		answer(w, rule)
		return
	case target.FaultStall:
		p.wait(r.Context(), rule.For)
		panic(http.ErrAbortHandler) // the connection ends without an answer
	case target.FaultLate:
		p.wait(context.Background(), rule.For)
	case target.FaultTwice:
		if reply, err := p.ask(r, body); err == nil {
			io.Copy(io.Discard, reply.Body)
			reply.Body.Close()
		}
	}
	if r.Header.Get("Upgrade") != "" && (rule.Fault == target.FaultLate || rule.Fault == target.FaultTwice) {
		r.Body = &capture{r: io.NopCloser(bytes.NewReader(body)), done: func([]byte) {}}
		p.upgrade(w, r, index)
		return
	}
	reply, err := p.ask(r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer reply.Body.Close()
	switch rule.Fault {
	case target.FaultReplaced:
		io.Copy(io.Discard, reply.Body)
		passed(rule.Status)
		answer(w, rule)
	case target.FaultLost:
		io.Copy(io.Discard, reply.Body)
		panic(http.ErrAbortHandler)
	case target.FaultCut:
		passed(reply.StatusCode)
		cut(w, reply)
	default:
		passed(reply.StatusCode)
		pass(w, reply)
		io.Copy(flushed{w, http.NewResponseController(w)}, reply.Body)
	}
}

// wait returns after d, or when ctx or the proxy ends.
func (p *Proxy) wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-p.closing.Done():
	}
}

// ask sends the request to the engine, whatever becomes of the caller.
func (p *Proxy) ask(r *http.Request, body []byte) (*http.Response, error) {
	out := r.Clone(p.closing)
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", "engine", ""
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if r.Header.Get("Upgrade") == "" {
		return p.idle.RoundTrip(out)
	}
	return p.askUpgrade(out)
}

// askUpgrade is ask for a call that takes the connection over. The answer is its head, without what the
// connection then carries.
func (p *Proxy) askUpgrade(out *http.Request) (*http.Response, error) {
	back, err := p.dial(p.closing)
	if err != nil {
		return nil, err
	}
	out.URL = &url.URL{Path: out.URL.Path, RawPath: out.URL.RawPath, RawQuery: out.URL.RawQuery}
	if err := out.Write(back); err != nil {
		return nil, errors.Join(err, back.Close())
	}
	reply, err := http.ReadResponse(bufio.NewReader(back), out)
	if err != nil {
		return nil, errors.Join(err, back.Close())
	}
	reply.Body, reply.ContentLength = both{http.NoBody, back}, -1
	return reply, nil
}

// both reads nothing and closes the connection.
type both struct {
	io.Reader
	net.Conn
}

func (b both) Read(p []byte) (int, error) { return b.Reader.Read(p) }

// answer is the tape's own.
func answer(w http.ResponseWriter, rule target.TapeRule) {
	if rule.Status < 400 {
		w.WriteHeader(rule.Status)
		return
	}
	text := rule.Text
	if text == "" {
		text = "fault injected by the tape"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(rule.Status)
	fmt.Fprintf(w, "{\"message\":%q}\n", text)
}

// pass gives the head of the engine's answer on.
func pass(w http.ResponseWriter, reply *http.Response) {
	for name, values := range reply.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(reply.StatusCode)
}

// cut gives the head and half of a body of known length on, and ends the connection. Of an answer that
// goes on without an announced end, the head is what comes.
func cut(w http.ResponseWriter, reply *http.Response) {
	if reply.StatusCode == http.StatusSwitchingProtocols {
		front, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer front.Close()
		fmt.Fprintf(front, "HTTP/1.1 %s\r\n", reply.Status)
		reply.Header.Write(front)
		io.WriteString(front, "\r\n")
		return
	}
	if reply.ContentLength != 0 { // an answer without a body has no middle: it is lost
		pass(w, reply)
		if reply.ContentLength > 1 {
			io.CopyN(w, reply.Body, reply.ContentLength/2)
		}
		http.NewResponseController(w).Flush()
	}
	panic(http.ErrAbortHandler)
}

// flushed passes each write on at once.
type flushed struct {
	w io.Writer
	c *http.ResponseController
}

func (f flushed) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	return n, errors.Join(err, f.c.Flush())
}
