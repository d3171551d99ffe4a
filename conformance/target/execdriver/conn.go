// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// conn matches answers with requests. Lock order: turn, then writing, then mu.
type conn struct {
	proc    *process
	bounds  bounds
	turn    chan struct{} // held while a request of a serial program is under way; nil otherwise
	writing chan struct{} // held while a line is written
	broken  chan struct{} // closed with reason set
	read    chan struct{} // closed when the program's output has ended

	mu      sync.Mutex
	nextID  int64
	waiting map[int64]*pending
	reason  error
	closing bool   // close was sent
	closed  bool   // and answered
	late    string // a line after that
}

type pending struct {
	op     string
	answer chan answer // of one
	serial bool        // the turn is given back with the answer
	timer  *time.Timer // breaks the connection when it does not come
}

func newConn(p *process, b bounds) *conn {
	c := &conn{
		proc: p, bounds: b, writing: make(chan struct{}, 1), broken: make(chan struct{}), read: make(chan struct{}), waiting: map[int64]*pending{},
	}
	go c.receive()
	go c.watch()
	return c
}

// serial lets one request at a time be under way from now on.
func (c *conn) serial() { c.turn = make(chan struct{}, 1) }

// call sends one request and decodes its answer into ok. bound is how long the program may take;
// a program that takes longer is broken. When ctx ends first the program is told, and the answer
// is thrown away when it comes.
func (c *conn) call(ctx context.Context, op string, bound time.Duration, req request, ok any) error {
	if c.turn != nil {
		select {
		case c.turn <- struct{}{}: // given back with the answer
		case <-c.broken:
			return c.reason
		case <-ctx.Done():
			return fmt.Errorf("%s: waiting for the serial program: %w", op, context.Cause(ctx))
		}
	}
	id, p, err := c.send(ctx, op, bound, req)
	if err != nil {
		return err
	}
	select {
	case a := <-p.answer:
		return decode(op, a, ok)
	case <-c.broken:
		select { // an answer that came before the end counts
		case a := <-p.answer:
			return decode(op, a, ok)
		default:
			return c.reason
		}
	case <-ctx.Done():
		c.leave(id)
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
}

func (c *conn) send(ctx context.Context, op string, bound time.Duration, req request) (int64, *pending, error) {
	giveBack := func() {
		if c.turn != nil {
			<-c.turn
		}
	}
	c.mu.Lock()
	c.nextID++
	id := c.nextID
	c.mu.Unlock()
	req.set(id, op)
	line, err := strictjson.Marshal(req)
	if err == nil && len(line) >= MaxLine {
		err = &target.Error{Code: "EXEC_LINE_TOO_LONG", Kind: target.KindUnsupported, Cause: fmt.Errorf("the request has %d bytes, a line at most %d", len(line), MaxLine)}
	}
	if err != nil {
		giveBack()
		return 0, nil, err
	}
	select {
	case c.writing <- struct{}{}:
	case <-c.broken:
		giveBack()
		return 0, nil, c.reason
	case <-ctx.Done():
		giveBack()
		return 0, nil, fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	defer func() { <-c.writing }()
	p := &pending{op: op, answer: make(chan answer, 1), serial: c.turn != nil}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		giveBack()
		return 0, nil, errors.New("the target is closed")
	}
	c.closing = op == "close"
	c.waiting[id] = p
	p.timer = time.AfterFunc(bound, func() { c.fail(violation("no answer to request %d (%s) within %s", id, op, bound)) })
	c.mu.Unlock()
	return id, p, c.write(line)
}

// endingWithin is how long a program that closed its input may take to end, if it does.
const endingWithin = 2 * time.Second

// write puts one whole line. Half a line would make every later one unreadable.
func (c *conn) write(line []byte) error {
	c.proc.stdin.SetWriteDeadline(time.Now().Add(c.bounds.write))
	if _, err := c.proc.stdin.Write(append(line, '\n')); err != nil {
		wait := time.Duration(0)
		if errors.Is(err, syscall.EPIPE) { // nobody has the other end: the program is ending, or has closed it
			wait = endingWithin
		}
		select {
		case <-c.broken:
		case <-c.proc.done:
			<-c.broken // watch tells how it ended
		case <-time.After(wait):
			c.fail(violation("the program does not read its requests: %v", err))
		}
		return c.reason
	}
	return nil
}

// leave gives up an answer. The program is told; a serial one does not listen meanwhile.
func (c *conn) leave(id int64) {
	c.mu.Lock()
	_, owed := c.waiting[id]
	tell := owed && c.turn == nil && !c.closing
	c.mu.Unlock()
	if !tell {
		return
	}
	line, err := json.Marshal(cancelNotice{id})
	if err != nil {
		return
	}
	select {
	case c.writing <- struct{}{}:
		c.write(line)
		<-c.writing
	case <-c.broken:
	}
}

// receive reads answers until the program's output ends.
func (c *conn) receive() {
	defer close(c.read)
	r := bufio.NewReaderSize(c.proc.stdout, 64<<10)
	for {
		line, err := readLine(r)
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return // watch tells how the program ended
		case errors.Is(err, io.EOF):
			c.fail(violation("the output ends in the middle of a line: %s", clip(line)))
			return
		case err != nil:
			c.fail(err)
			return
		}
		if !c.take(line) {
			return
		}
	}
}

// readLine returns a line without its newline; io.EOF comes with what there was of the last one.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > MaxLine {
			return nil, violation("a line has more than %d bytes", MaxLine)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return line, io.EOF
		default: // closed by us: the same as an end
			return nil, io.EOF
		}
	}
}

// take delivers one line and says whether to go on.
func (c *conn) take(line []byte) bool {
	var a answer
	if err := strictjson.Unmarshal(line, &a, answerLimits); err != nil {
		c.fail(violation("not an answer: %s: %v", clip(line), err))
		return false
	}
	c.mu.Lock()
	p := c.waiting[a.ID]
	known := a.ID >= 1 && a.ID <= c.nextID
	switch {
	case c.closed && p != nil: // owed since before, and nobody waits for it any more
		p.timer.Stop()
		delete(c.waiting, a.ID)
		c.mu.Unlock()
		return true
	case c.closed:
		c.late = clip(line)
		c.mu.Unlock()
		return true
	case p == nil && known:
		c.mu.Unlock()
		c.fail(violation("request %d has been answered before: %s", a.ID, clip(line)))
		return false
	case p == nil:
		c.mu.Unlock()
		c.fail(violation("there is no request %d: %s", a.ID, clip(line)))
		return false
	case (len(a.OK) == 0) == (a.Error == nil):
		c.mu.Unlock()
		c.fail(violation("the answer to request %d (%s) has not exactly one of ok and error: %s", a.ID, p.op, clip(line)))
		return false
	case a.Error != nil && (a.Error.Code == "" || !kinds[target.Kind(a.Error.Kind)]):
		c.mu.Unlock()
		c.fail(violation("the error of request %d (%s) has no code, or the unknown kind %q: %s", a.ID, p.op, a.Error.Kind, clip(line)))
		return false
	}
	delete(c.waiting, a.ID)
	p.timer.Stop()
	c.closed = p.op == "close"
	c.mu.Unlock()
	p.answer <- a
	if p.serial {
		<-c.turn
	}
	return true
}

// watch breaks the connection when the program ends, or closes its output, before it was closed.
func (c *conn) watch() {
	select {
	case <-c.read:
		// An end of the output mostly is an end of the program: its status says more.
		c.proc.await(time.Second)
	case <-c.proc.done:
		// Answers that are under way count; a child that holds the pipe does not keep us.
		select {
		case <-c.read:
		case <-time.After(time.Second):
		}
	}
	select {
	case <-c.proc.done:
		select { // what it said last is on its way
		case <-c.proc.log.done:
		case <-time.After(200 * time.Millisecond):
		}
		text := "the program has ended: " + c.proc.status
		if last := c.proc.log.last(); last != "" {
			text += "; its last words: " + last
		}
		c.fail(&ProtocolError{text})
	default:
		c.fail(violation("the program has closed its output"))
	}
}

// fail breaks the connection once, and ends a program that was not closed.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.reason != nil {
		c.mu.Unlock()
		return
	}
	c.reason = err
	for _, p := range c.waiting {
		p.timer.Stop()
	}
	orderly := c.closed
	close(c.broken)
	c.mu.Unlock()
	if !orderly {
		go c.proc.kill()
	}
}

// decode turns an answer into the operation's result or the runtime's typed error.
func decode(op string, a answer, ok any) error {
	if a.Error != nil {
		e := &target.Error{Code: a.Error.Code, Kind: target.Kind(a.Error.Kind)}
		if a.Error.Text != "" {
			e.Cause = errors.New(a.Error.Text)
		}
		return e
	}
	if err := strictjson.Unmarshal(a.OK, ok, answerLimits); err != nil {
		return violation("the answer to %s: %v: %s", op, err, clip(a.OK))
	}
	return nil
}
