// SPDX-License-Identifier: Apache-2.0

package tape

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// capture keeps the first MaxBody bytes that pass through a request body.
type capture struct {
	r    io.ReadCloser
	done func([]byte)

	mu   sync.Mutex
	kept []byte
}

func (c *capture) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.mu.Lock()
	if room := MaxBody - len(c.kept); room > 0 {
		c.kept = append(c.kept, b[:min(n, room)]...)
	}
	c.mu.Unlock()
	return n, err
}

func (c *capture) Close() error { return c.r.Close() }

// flush records what has passed so far; the transport may still be reading.
func (c *capture) flush() {
	c.mu.Lock()
	b := bytes.Clone(c.kept)
	c.mu.Unlock()
	c.done(b)
}

// statusWriter reports the status when the headers go out, which for a stream is long before
// the handler returns.
type statusWriter struct {
	http.ResponseWriter
	seen func(int)
}

func (w *statusWriter) WriteHeader(status int) {
	if status >= 200 {
		w.seen(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// statusPeek reads the status out of "HTTP/1.1 101 ..." as it passes by.
type statusPeek struct {
	found func(int)
	line  []byte
	over  bool
}

func (s *statusPeek) Write(b []byte) (int, error) {
	if !s.over {
		s.line = append(s.line, b[:min(len(b), 16-len(s.line))]...)
		if len(s.line) >= 12 {
			s.over = true
			if status, err := strconv.Atoi(string(s.line[9:12])); err == nil {
				s.found(status)
			}
		}
	}
	return len(b), nil
}
