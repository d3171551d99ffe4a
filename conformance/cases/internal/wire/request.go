// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Dial opens a connection to the worker, as target.Authority does.
type Dial func(ctx context.Context) (net.Conn, error)

// Request is one request of HTTP/1.1, line by line.
type Request struct {
	Method, Target string
	// Header holds whole lines without their ends, in this order, after Host. Content-Length is
	// added for a body unless Framed says that the lines have it.
	Header []string
	Body   []byte
	Framed bool
}

// Bearer is the header line that carries a capability.
func Bearer(token string) string { return "Authorization: Bearer " + token }

// Head is the request without its body, the empty line included.
func (r Request) Head() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: worker\r\n", r.Method, r.Target)
	for _, line := range r.Header {
		b.WriteString(line + "\r\n")
	}
	if !r.Framed && len(r.Body) > 0 {
		b.WriteString("Content-Length: " + strconv.Itoa(len(r.Body)) + "\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Raw    []byte // everything that arrived, the status line and headers included
	Close  bool   // the worker ends the connection after it
}

// Bounds of one exchange.
const (
	ExchangeTimeout = 75 * time.Second // beyond every deadline of the API that a case waits for
	maxAnswer       = 16 << 20
)

// Send makes one exchange over a connection of its own.
func Send(ctx context.Context, dial Dial, r Request) (Answer, error) {
	c, err := open(ctx, dial)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	return Over(c, append(r.Head(), r.Body...))
}

// Over writes text and reads one answer. A write that the worker cuts short is no error when an
// answer came: a refusal may come before the end of what is refused.
func Over(c net.Conn, text []byte) (Answer, error) {
	_, werr := c.Write(text)
	a, err := Read(c)
	if err != nil && werr != nil {
		return a, fmt.Errorf("write request: %w", werr)
	}
	return a, err
}

// Read reads one answer.
func Read(c net.Conn) (Answer, error) {
	var raw bytes.Buffer
	res, err := http.ReadResponse(bufio.NewReader(io.TeeReader(io.LimitReader(c, maxAnswer), &raw)), nil)
	if err != nil {
		return Answer{Raw: raw.Bytes()}, fmt.Errorf("read answer: %w", err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	a := Answer{Status: res.StatusCode, Header: res.Header, Body: body, Raw: raw.Bytes(), Close: res.Close}
	if err != nil {
		return a, fmt.Errorf("read answer: %w", err)
	}
	return a, nil
}

// open dials and bounds the connection by ExchangeTimeout and ctx.
func open(ctx context.Context, dial Dial) (net.Conn, error) {
	c, err := dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("open connection: %w", err)
	}
	end := time.Now().Add(ExchangeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	if err := c.SetDeadline(end); err != nil {
		c.Close()
		return nil, fmt.Errorf("bound connection: %w", err)
	}
	return c, nil
}

// Together makes all exchanges at once, each over a connection of its own. Every connection is
// open, and has all of its request but the last byte of the headers and the body, before the first
// of them gets the rest. The error is that of the first exchange without an answer.
func Together(ctx context.Context, dial Dial, requests []Request) ([]Answer, error) {
	conns := make([]net.Conn, len(requests))
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i, r := range requests {
		c, err := open(ctx, dial)
		if err != nil {
			return nil, err
		}
		conns[i] = c
		head := r.Head()
		if _, err := c.Write(head[:len(head)-1]); err != nil {
			return nil, fmt.Errorf("write request: %w", err)
		}
	}
	answers, errs := make([]Answer, len(requests)), make([]error, len(requests))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() {
			<-start
			answers[i], errs[i] = Over(conns[i], append([]byte("\n"), r.Body...))
		})
	}
	close(start)
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return answers, fmt.Errorf("exchange %d of %d: %w", i+1, len(errs), err)
		}
	}
	return answers, nil
}
