// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// answer reads one answer. The connection may have another behind it only if it is kept open.
func answer(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// refusal reads everything until the worker closes: exactly one answer, with code.
func refusal(t *testing.T, c net.Conn, code api.Code) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if e := api.DecodeError(res.StatusCode, b); e.Code != code {
		t.Errorf("got %d %q", res.StatusCode, b)
	}
	// A reset is an end too: the worker closes while more is still on its way to it.
	if rest, err := io.ReadAll(r); len(rest) != 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("behind the answer: %q, %v", rest, err)
	}
}

func dialSocket(path string) (net.Conn, error) { return net.Dial("unix", path) }

// dial connects to the socket.
func (r *rig) dial() net.Conn {
	r.t.Helper()
	c, err := dialSocket(r.cfg.Socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}
