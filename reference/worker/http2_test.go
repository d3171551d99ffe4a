// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// framed speaks HTTP/2 by hand, by prior knowledge.
type framed struct {
	*http2.Framer
	t    *testing.T
	c    net.Conn
	enc  *hpack.Encoder
	text bytes.Buffer
	next uint32
	sent int // bytes

	streams uint32 // as the worker announces them
}

func (r *rig) framed() *framed {
	r.t.Helper()
	f := &framed{t: r.t, c: r.dial(), next: 1}
	f.Framer = http2.NewFramer(f, f.c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.enc = hpack.NewEncoder(&f.text)
	f.must(io.WriteString(f.c, http2.ClientPreface))
	f.must(0, f.WriteSettings())
	for acked := false; !acked; {
		switch g := f.read().(type) {
		case *http2.SettingsFrame:
			if g.IsAck() {
				acked = true
				continue
			}
			f.streams, _ = g.Value(http2.SettingMaxConcurrentStreams)
			f.must(0, f.WriteSettingsAck())
		}
	}
	return f
}

// Write implements [io.Writer] for the framer.
func (f *framed) Write(b []byte) (int, error) {
	n, err := f.c.Write(b)
	f.sent += n
	return n, err
}

func (f *framed) must(_ int, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// read returns the next frame; the test ends when there is none.
func (f *framed) read() http2.Frame {
	f.t.Helper()
	g, err := f.try()
	if err != nil {
		f.t.Fatalf("no frame: %v", err)
	}
	return g
}

func (f *framed) try() (http2.Frame, error) {
	if err := f.c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, err
	}
	return f.ReadFrame()
}

// block encodes a request's fields, and more behind them.
func (f *framed) block(method, path, token string, more ...string) []byte {
	f.t.Helper()
	f.text.Reset()
	fields := append([]string{":method", method, ":scheme", "http", ":authority", "w", ":path", path}, more...)
	if token != "" {
		fields = append(fields, "authorization", "Bearer "+token)
	}
	for i := 0; i < len(fields); i += 2 {
		if err := f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			f.t.Fatal(err)
		}
	}
	return bytes.Clone(f.text.Bytes())
}

// open sends the head of a request on a new stream.
func (f *framed) open(block []byte, end bool) uint32 {
	f.t.Helper()
	id := f.next
	f.next += 2
	first, rest := block, []byte(nil)
	if len(first) > 16<<10 {
		first, rest = block[:16<<10], block[16<<10:]
	}
	f.must(0, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(rest) == 0, EndStream: end}))
	for len(rest) > 0 {
		n := min(len(rest), 16<<10)
		f.must(0, f.WriteContinuation(id, n == len(rest), rest[:n]))
		rest = rest[n:]
	}
	return id
}

// reply reads one stream to its end; reset says that it was cut.
func (f *framed) reply(id uint32) (status string, body []byte, reset bool) {
	f.t.Helper()
	for {
		switch g := f.read().(type) {
		case *http2.MetaHeadersFrame:
			if g.StreamID != id {
				continue
			}
			status = g.PseudoValue("status")
			if g.StreamEnded() {
				return status, body, false
			}
		case *http2.DataFrame:
			if g.StreamID != id {
				continue
			}
			body = append(body, g.Data()...)
			if g.StreamEnded() {
				return status, body, false
			}
		case *http2.RSTStreamFrame:
			if g.StreamID == id {
				return status, body, true
			}
		case *http2.GoAwayFrame:
			if g.ErrCode != http2.ErrCodeNo {
				f.t.Fatalf("connection ends with %v", g.ErrCode)
			}
		}
	}
}

func (r *rig) mint(req client.RawRequest) string {
	r.t.Helper()
	token, err := r.client.Mint(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

func (f *framed) code(id uint32) api.Code {
	f.t.Helper()
	status, body, reset := f.reply(id)
	if reset {
		f.t.Fatal("the stream was reset")
	}
	var n int
	if _, err := fmt.Sscan(status, &n); err != nil {
		f.t.Fatal(err)
	}
	if n < 400 {
		return ""
	}
	return api.DecodeError(n, body).Code
}

const execTarget = "/v1/sandboxes/sb/exec"

func execNumber(i int) []byte {
	return fmt.Appendf(nil, `{"invocationId":"i%d","argv":["x"],"cwd":"","timeoutMs":60000,"maxOutputBytes":1}`, i)
}

func (r *rig) execToken(i int) string {
	return r.mint(client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: execNumber(i)})
}

// exec opens a stream with a whole exec request.
func (f *framed) exec(r *rig, i int) uint32 {
	f.t.Helper()
	id := f.open(f.block("POST", execTarget, r.execToken(i)), false)
	f.must(0, f.WriteData(id, true, execNumber(i)))
	return id
}

// prove carries one good request, so that refusals do not end the connection.
func (f *framed) prove(r *rig) {
	f.t.Helper()
	req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	if code := f.code(f.open(f.block("GET", req.Target, r.mint(req)), true)); code != "" {
		f.t.Fatalf("got %s", code)
	}
}

// TestHTTP2Client: net/http's own client, by prior knowledge.
func TestHTTP2Client(t *testing.T) {
	r := newRig(t, tweak{})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.cfg.Socket)
	}}
	defer tr.CloseIdleConnections()
	for i := range 3 {
		hr, err := http.NewRequestWithContext(t.Context(), "POST", "http://w"+execTarget, bytes.NewReader(execNumber(i)))
		if err != nil {
			t.Fatal(err)
		}
		hr.Header.Set("Authorization", "Bearer "+r.execToken(i))
		res, err := tr.RoundTrip(hr)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || res.ProtoMajor != 2 || !bytes.Contains(b, fmt.Appendf(nil, `"i%d"`, i)) {
			t.Errorf("got %s %s %q, %v", res.Proto, res.Status, b, err)
		}
	}
}

// TestHTTP2Targets: the capability covers :path byte for byte.
func TestHTTP2Targets(t *testing.T) {
	r := newRig(t, tweak{})
	f := r.framed()
	f.prove(r)
	r.fake.files["a b"] = []byte("x")
	read := func(signed, sent string) api.Code {
		token := r.mint(client.RawRequest{Op: api.OpRead, Method: "GET", Target: signed, WorkspaceID: "ws", SandboxID: "sb"})
		return f.code(f.open(f.block("GET", sent, token), true))
	}
	const files = "/v1/sandboxes/sb/files?path="
	for _, tt := range []struct {
		signed, sent string
		code         api.Code
	}{
		{files + "a%20b", files + "a%20b", ""},
		{files + "a%20b", files + "a+b", api.Unauthenticated},
		{files + "%61%20b", files + "%61%20b", ""},
		{files + "a%20b", files + "%61%20b", api.Unauthenticated},
		{files + "a", files + "a#b", api.Unauthenticated},
		{files + "a#b", files + "a#b", api.PathNotFound}, // no fragment: a request target has none
		{files + "a??b", files + "a??b", api.PathNotFound},
	} {
		if code := read(tt.signed, tt.sent); code != tt.code {
			t.Errorf("signed %s, sent %s: got %s, want %s", tt.signed, tt.sent, code, tt.code)
		}
	}
	token := r.mint(client.RawRequest{Op: api.OpGet, Method: "OPTIONS", Target: "*", WorkspaceID: "ws", SandboxID: "sb"})
	if code := f.code(f.open(f.block("OPTIONS", "*", token), true)); code != api.RequestInvalid {
		t.Errorf("OPTIONS *: got %q", code)
	}
	for _, target := range []string{"//v1/sandboxes/sb", "/v1/sandboxes/x/../sb", "/v1/sandboxes/%2e/sb", "/v1/sandboxes/s%62", "/v1/sandboxes/sb?", "/v1/sandboxes/sb#x", "/v1/sandboxes/sb/"} {
		token := r.mint(client.RawRequest{Op: api.OpGet, Method: "GET", Target: target, WorkspaceID: "ws", SandboxID: "sb"})
		if code := f.code(f.open(f.block("GET", target, token), true)); code != api.RequestInvalid {
			t.Errorf("%s: got %s", target, code)
		}
	}
}

// TestHTTP2StreamEnds: a caller that leaves ends its invocation, stream by stream.
func TestHTTP2StreamEnds(t *testing.T) {
	for name, end := range map[string]func(*framed, uint32){
		"RST_STREAM":   func(f *framed, id uint32) { f.must(0, f.WriteRSTStream(id, http2.ErrCodeCancel)) },
		"connection":   func(f *framed, _ uint32) { _ = f.c.Close() },
		"half close":   func(f *framed, _ uint32) { _ = f.c.(*net.UnixConn).CloseWrite() },
		"broken frame": func(f *framed, _ uint32) { f.must(0, f.WriteRawFrame(http2.FrameData, 0, 0, []byte("x"))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tweak{})
			entered, ended := make(chan string, 2), make(chan string, 2)
			keep := make(chan struct{})
			r.fake.onExec = func(ctx context.Context, req api.ExecRequest) (api.ExecResult, error) {
				entered <- req.InvocationID
				select {
				case <-ctx.Done():
					ended <- req.InvocationID
					return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
				case <-keep:
					zero := 0
					return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
				}
			}
			f := r.framed()
			f.exec(r, 0)
			if got := <-entered; got != "i0" {
				t.Fatal(got)
			}
			second := f.exec(r, 1)
			<-entered
			end(f, second)
			select {
			case got := <-ended:
				if name == "RST_STREAM" && got != "i1" {
					t.Errorf("%s ended", got)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the invocation outlived its stream")
			}
			if name == "RST_STREAM" {
				close(keep) // the neighbour is untouched
				if status, _, reset := f.reply(1); status != "200" || reset {
					t.Errorf("the neighbour: %s, reset %v", status, reset)
				}
				return
			}
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Error("the other invocation outlived the connection")
			}
		})
	}
}

// TestHTTP2StalledStreams: a body that does not come and an answer that is not read end their own
// stream and no other.
func TestHTTP2StalledStreams(t *testing.T) {
	r := newRig(t, tweak{stall: 300 * time.Millisecond})
	f := r.framed()
	f.prove(r)
	id := f.open(f.block("POST", execTarget, r.execToken(0)), false)
	f.must(0, f.WriteData(id, false, execNumber(0)[:10]))
	if code := f.code(id); code != api.RequestInvalid {
		t.Errorf("a body that stalls: got %s", code)
	}
	closed := make(chan struct{})
	r.fake.onRead = func(context.Context, []byte) (io.ReadCloser, int64, error) {
		return &zeros{closed: closed}, 64 << 20, nil
	}
	read := client.RawRequest{Op: api.OpRead, Method: "GET", Target: "/v1/sandboxes/sb/files?path=a", WorkspaceID: "ws", SandboxID: "sb"}
	id = f.open(f.block("GET", read.Target, r.mint(read)), true)
	// 64 KiB fit into the window of the stream, then nothing is granted.
	if _, body, reset := f.reply(id); !reset || len(body) > 65535 {
		t.Errorf("an answer that is not read: %d bytes, reset %v", len(body), reset)
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("the file is still open")
	}
	f.must(0, f.WriteWindowUpdate(0, 65535))
	f.prove(r)
	// Nor does a deadline end a stream on which nothing is owed by its caller.
	r.fake.onExec = func(ctx context.Context, req api.ExecRequest) (api.ExecResult, error) {
		select {
		case <-ctx.Done():
			return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
		case <-time.After(4 * r.server.stall):
		}
		zero := 0
		return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
	}
	if status, _, reset := f.reply(f.exec(r, 1)); status != "200" || reset {
		t.Errorf("a long invocation: status %q, reset %v", status, reset)
	}
}

func TestHTTP2ConcurrentStreams(t *testing.T) {
	r := newRig(t, tweak{})
	entered, leave := make(chan struct{}, 2*maxStreams), make(chan struct{})
	r.fake.onExec = func(_ context.Context, req api.ExecRequest) (api.ExecResult, error) {
		entered <- struct{}{}
		<-leave
		zero := 0
		return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
	}
	defer close(leave)
	f := r.framed()
	if f.streams != maxStreams {
		t.Errorf("%d streams announced", f.streams)
	}
	for i := range maxStreams {
		f.exec(r, i)
	}
	for range maxStreams {
		<-entered
	}
	over := f.open(f.block("GET", "/healthz", ""), true)
	if _, _, reset := f.reply(over); !reset {
		t.Error("a stream above the bound is served")
	}
	select {
	case <-entered:
		t.Error("one more ran")
	default:
	}
}

func TestHTTP2Headers(t *testing.T) {
	r := newRig(t, tweak{})
	f := r.framed()
	f.prove(r)
	fields := func(n, size int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("x-%d", i), strings.Repeat("a", size))
		}
		return out
	}
	if code := f.code(f.open(f.block("GET", "/v1/health", "junk", fields(1, api.MaxHeaderBytes)...), true)); code != api.RequestInvalid {
		t.Errorf("one of 32 KiB: got %s", code)
	}
	if code := f.code(f.open(f.block("GET", "/v1/health", "junk", fields(40, 1000)...), true)); code != api.RequestInvalid {
		t.Errorf("forty of 1000 bytes: got %s", code)
	}
	// The protocol's own answers, which no handler sees: a status, and nothing of the request.
	id := f.open(f.block("GET", "/v1/health", "junk", fields(1800, 0)...), true)
	if status, body, _ := f.reply(id); status != "431" || bytes.Contains(body, []byte("junk")) {
		t.Errorf("1,800, which HTTP/2 counts with 32 bytes each: %s %q", status, body)
	}
	id = f.open(f.block("GET", "/v1/health", "junk", "transfer-encoding", "chunked"), true)
	if status, body, _ := f.reply(id); status != "400" || bytes.Contains(body, []byte("junk")) {
		t.Errorf("transfer-encoding: %s %q", status, body)
	}
	for name, more := range map[string][]string{
		"upper case":     {"X-A", "1"},
		"line feed":      {"x-a", "1\n2"},
		"second path":    {":path", "/healthz"},
		"unknown pseudo": {":x", "1"},
	} {
		id := f.open(f.block("GET", "/v1/health", "junk", more...), true)
		if _, _, reset := f.reply(id); !reset {
			t.Errorf("%s: not reset", name)
		}
	}
	f.prove(r)
}

// TestHTTP2Floods: each ends its own connection, at the latest by the bytes that a stranger may
// send. The worker goes on.
func TestHTTP2Floods(t *testing.T) {
	r := newRig(t, tweak{})
	for name, tt := range map[string]func(*framed) error{
		// CVE-2023-45288: a block of headers that never ends.
		"CONTINUATION": func(f *framed) error {
			block := f.block("GET", "/healthz", "")
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true}); err != nil {
				return err
			}
			f.text.Reset()
			if err := f.enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 8000), Sensitive: true}); err != nil {
				return err
			}
			return f.WriteContinuation(1, false, bytes.Clone(f.text.Bytes()))
		},
		// CVE-2023-44487: streams are opened and reset at once.
		"rapid reset": func(f *framed) error {
			id := f.next
			f.next += 2
			block := f.block("GET", "/v1/sandboxes/sb", "")
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: true}); err != nil {
				return err
			}
			return f.WriteRSTStream(id, http2.ErrCodeCancel)
		},
		"PING": func(f *framed) error { return f.WritePing(false, [8]byte{}) },
		"SETTINGS": func(f *framed) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		},
		"empty DATA": func(f *framed) error {
			if f.next == 1 {
				f.open(f.block("PUT", "/v1/sandboxes/sb/files?mode=create&path=a", ""), false)
			}
			return f.WriteData(1, false, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := r.framed()
			// Nothing is read, so that what is owed to this peer piles up as well.
			deadline := time.Now().Add(30 * time.Second)
			if err := f.c.SetWriteDeadline(deadline); err != nil {
				t.Fatal(err)
			}
			count := 0
			var err error
			for ; err == nil; count++ {
				if name == "CONTINUATION" && count > 0 {
					err = f.WriteContinuation(1, false, bytes.Clone(f.text.Bytes()))
					continue
				}
				err = tt(f)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("after %d the connection stands: %v", count, err)
			}
			// What the kernel holds for the worker is sent, and never read.
			if f.sent > strangerBytes+1<<20 {
				t.Errorf("ended after %d bytes", f.sent)
			}
			t.Logf("ended after %d, %d bytes: %v", count, f.sent, err)
			if _, err := r.client.Get(t.Context(), "ws", "sb"); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}
