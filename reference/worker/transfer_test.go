// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// send writes a request of r's client with the head of a body, and returns its connection.
func (r *rig) send(req client.RawRequest, length int, head string) net.Conn {
	r.t.Helper()
	return r.sendHead(req, "", length, head)
}

// sendHead is send with more header fields, each ended by CR LF.
func (r *rig) sendHead(req client.RawRequest, fields string, length int, head string) net.Conn {
	r.t.Helper()
	token, err := r.client.Mint(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := net.Dial("unix", r.cfg.Socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s", req.Method, req.Target, token, fields, length, head); err != nil {
		r.t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// endSandbox ends the sandbox of the file operation that has been opened.
func (r *rig) endSandbox() {
	r.t.Helper()
	r.endFiles(api.E(api.SandboxExpired, errors.New("lease ended")))
}

// endFiles ends the file operation that has been opened for cause.
func (r *rig) endFiles(cause error) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		r.fake.mu.Lock()
		end := r.fake.end
		r.fake.mu.Unlock()
		if end != nil {
			time.Sleep(100 * time.Millisecond) // into the transfer; the result is the same before it
			end(cause)
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("no file operation began")
		}
	}
}

// TestSlowUploadEndsWithItsSandbox: the client has sent a part and stays silent.
func TestSlowUploadEndsWithItsSandbox(t *testing.T) {
	r := newRig(t, tweak{})
	c := r.send(client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: "ws", SandboxID: "sb", Body: []byte("whole")}, 5, "wh")
	r.endSandbox()
	began := time.Now()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if e := api.DecodeError(res.StatusCode, b); err != nil || e.Code != api.SandboxExpired {
		t.Errorf("got %d %s, %v", res.StatusCode, b, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the upload held its sandbox for %v", took)
	}
	if len(r.fake.files) != 0 {
		t.Errorf("stored %q", r.fake.files)
	}
}

// TestUploadBeyondItsTime: the deadline of the operation is the API's own.
func TestUploadBeyondItsTime(t *testing.T) {
	r := newRig(t, tweak{})
	c := r.send(client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: "ws", SandboxID: "sb", Body: []byte("whole")}, 5, "wh")
	r.endFiles(context.DeadlineExceeded)
	res := answer(t, c)
	b, err := io.ReadAll(res.Body)
	if e := api.DecodeError(res.StatusCode, b); err != nil || e.Code != api.Timeout {
		t.Errorf("got %d %s, %v", res.StatusCode, b, err)
	}
	if len(r.fake.files) != 0 {
		t.Errorf("stored %q", r.fake.files)
	}
}

// TestUploadWithTrailers: what comes behind the body is covered by no capability, announced or not.
func TestUploadWithTrailers(t *testing.T) {
	r := newRig(t, tweak{})
	req := client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: "ws", SandboxID: "sb", Body: []byte("whole")}
	for name, tt := range map[string]struct {
		field, trailer string
		want           api.Code
	}{
		"announced":     {"Trailer: X-T\r\n", "X-T: 1\r\n", api.RequestInvalid},
		"not announced": {"", "X-T: 1\r\n", api.RequestInvalid},
		"none":          {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial()
			say(t, c, "PUT "+req.Target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+r.mint(req)+"\r\n"+tt.field+"Transfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n"+tt.trailer+"\r\n")
			if tt.want != "" {
				refusal(t, c, tt.want)
			} else if res := answer(t, c); res.StatusCode != http.StatusOK {
				t.Error(res.Status)
			}
			r.fake.mu.Lock()
			defer r.fake.mu.Unlock()
			if _, stored := r.fake.files["a"]; stored != (tt.want == "") {
				t.Errorf("stored: %t", stored)
			}
			delete(r.fake.files, "a")
		})
	}
}

// TestSlowDownloadEndsWithItsSandbox: the client reads nothing, so the worker's write blocks.
func TestSlowDownloadEndsWithItsSandbox(t *testing.T) {
	r := newRig(t, tweak{})
	closed := make(chan struct{})
	r.fake.onRead = func(context.Context, []byte) (io.ReadCloser, int64, error) {
		return &zeros{closed: closed}, 64 << 20, nil
	}
	r.send(client.RawRequest{Op: api.OpRead, Method: "GET", Target: "/v1/sandboxes/sb/files?path=a", WorkspaceID: "ws", SandboxID: "sb"}, 0, "")
	r.endSandbox()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Error("the download holds its sandbox")
	}
}

// zeros is an endless file.
type zeros struct{ closed chan struct{} }

func (z *zeros) Read(p []byte) (int, error) { return len(p), nil }
func (z *zeros) Close() error               { close(z.closed); return nil }
