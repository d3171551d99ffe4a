// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

func file(length int, media, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if media != "" {
			w.Header().Set("Content-Type", media)
		}
		if length >= 0 {
			w.Header().Set("Content-Length", strconv.Itoa(length))
		} else {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, body)
		_ = http.NewResponseController(w).Flush()
	}
}

func TestOpen(t *testing.T) {
	nothingLeft(t)
	l, c, _ := newLiar(t)
	l.answer = file(5, typeBytes, "hello")
	f, err := c.Open(t.Context(), "ws", "sb-1", "a b")
	if err != nil || f.Size != 5 || last(l.seen()) != "GET /v1/sandboxes/sb-1/files?path=a+b" {
		t.Fatalf("%+v, %v", f, err)
	}
	if b, err := io.ReadAll(iotest.OneByteReader(f)); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	l.answer = file(0, typeBytes, "")
	if b, err := c.Read(t.Context(), "ws", "sb-1", "\xff"); err != nil || len(b) != 0 || last(l.seen()) != "GET /v1/sandboxes/sb-1/files?pathBytes=%2Fw%3D%3D" {
		t.Errorf("%q, %v, %v", b, err, l.seen())
	}
}

func TestFileLies(t *testing.T) {
	nothingLeft(t)
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		code   api.Code
	}{
		"truncated": {func(w http.ResponseWriter, r *http.Request) {
			file(9, typeBytes, "short")(w, r)
			panic(http.ErrAbortHandler)
		}, api.StreamClosed},
		"of no length": {file(-1, typeBytes, "hello"), api.ResponseInvalid},
		"another type": {file(5, "text/plain", "hello"), api.ResponseInvalid},
		"too large": {func(w http.ResponseWriter, r *http.Request) {
			file(maxFile+1, typeBytes, "x")(w, r)
			panic(http.ErrAbortHandler)
		}, api.ResponseInvalid},
		"refusal in bytes": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, api.ResponseInvalid},
		"partial":          {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(206) }, api.ResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			l, c, _ := newLiar(t)
			l.answer = tt.answer
			b, err := c.Read(t.Context(), "ws", "sb-1", "f")
			if codeIs(t, err, tt.code); name != "truncated" && b != nil {
				t.Errorf("and %d bytes", len(b))
			}
		})
	}
}

// cutter ends every body after n bytes, as a proxy may that does not count.
type cutter struct {
	http.RoundTripper
	n int64
}

func (c cutter) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Opaque != "/v1/health" {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, c.n), res.Body}
	}
	return res, err
}

// TestCutFileIsNoFile: whoever lost the rest, its end is not the end of the file.
func TestCutFileIsNoFile(t *testing.T) {
	l, _, cfg := newLiar(t)
	l.answer = file(5, typeBytes, "hello")
	cfg.Wrap = func(rt http.RoundTripper) http.RoundTripper { return cutter{rt, 4} }
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Read(t.Context(), "ws", "sb-1", "f")
	if codeIs(t, err, api.StreamClosed); errors.Is(err, io.EOF) {
		t.Errorf("%q, %v", b, err)
	}
}

// stores answers as a worker that has stored the body behind before bytes.
func stores(t *testing.T, before int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", api.TypeJSON)
		_, _ = io.WriteString(w, jsonText(t, api.WriteResponse{Size: before + int64(len(b)), Digest: api.Digest(b)}))
	}
}

func TestWriteFrom(t *testing.T) {
	nothingLeft(t)
	l, c, _ := newLiar(t)
	body := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	write := func(r io.Reader, size int64, digest string, o WriteOptions) error {
		_, err := c.WriteFrom(t.Context(), "ws", "sb-1", "f", r, size, digest, o)
		return err
	}
	whole, digest := int64(len(body)), api.Digest(body)
	l.answer = stores(t, 0)
	if err := write(bytes.NewReader(body), whole, digest, WriteOptions{Replace: true, Executable: true}); err != nil || last(l.seen()) != "PUT /v1/sandboxes/sb-1/files?executable=true&mode=replace&path=f" {
		t.Errorf("%v, %v", err, l.seen())
	}
	if err := write(strings.NewReader(""), 0, api.Digest(nil), WriteOptions{}); err != nil {
		t.Error(err)
	}
	codeIs(t, write(bytes.NewReader(body), whole, api.Digest(nil), WriteOptions{}), api.ResponseInvalid) // the worker says what it stored
	codeIs(t, write(bytes.NewReader(body), whole-1, digest, WriteOptions{}), api.RequestInvalid)
	codeIs(t, write(bytes.NewReader(body), whole-1, api.Digest(body[:whole-1]), WriteOptions{}), api.RequestInvalid) // all but one would be stored
	codeIs(t, write(strings.NewReader("x"), 0, api.Digest(nil), WriteOptions{}), api.RequestInvalid)
	codeIs(t, write(bytes.NewReader(body), whole+1, digest, WriteOptions{}), api.RequestInvalid)
	broken := errors.New("disk")
	err := write(io.MultiReader(bytes.NewReader(body), iotest.ErrReader(broken)), whole+1, digest, WriteOptions{})
	if codeIs(t, err, api.RequestInvalid); !errors.Is(err, broken) {
		t.Errorf("the cause is lost: %v", err)
	}
	l.answer = stores(t, 7)
	if err := write(strings.NewReader("more"), 4, api.Digest([]byte("more")), WriteOptions{Append: true, ExpectedSize: 7}); err != nil || last(l.seen()) != "PUT /v1/sandboxes/sb-1/files?expectedSize=7&mode=append&path=f" {
		t.Errorf("%v, %v", err, l.seen())
	}
	codeIs(t, write(strings.NewReader("more"), 4, api.Digest([]byte("more")), WriteOptions{Append: true, ExpectedSize: 8}), api.ResponseInvalid)
	n := len(l.seen())
	for _, o := range []WriteOptions{{Append: true, Replace: true}, {Append: true, Executable: true}, {ExpectedSize: 1}} {
		codeIs(t, write(strings.NewReader("x"), 1, api.Digest([]byte("x")), o), api.RequestInvalid)
	}
	if len(l.seen()) != n {
		t.Error("options that exclude each other were sent")
	}
}

// TestRefusedWriteIsNotSent: the refusal comes before the body.
func TestRefusedWriteIsNotSent(t *testing.T) {
	nothingLeft(t)
	l, c, _ := newLiar(t)
	l.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", api.TypeJSON)
		w.WriteHeader(410)
		_, _ = io.WriteString(w, jsonText(t, api.SandboxExpired.Body("r1")))
	}
	untouched := iotest.ErrReader(errors.New("read before it was wanted"))
	_, err := c.WriteFrom(t.Context(), "ws", "sb-1", "f", untouched, 1<<20, api.Digest(nil), WriteOptions{})
	codeIs(t, err, api.SandboxExpired)
	if n := len(l.seen()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestFSAnswerBelongsToItsOperation(t *testing.T) {
	l, c, _ := newLiar(t)
	entry := `{"name":"a","kind":"file","size":0,"mode":0,"mtimeMs":0,"links":1}`
	for _, tt := range []struct {
		op, answer string
		fine       bool
	}{
		{api.FSStat, `{"entry":` + entry + `}`, true}, {api.FSStat, `{}`, false}, {api.FSStat, `{"entries":[` + entry + `]}`, false},
		{api.FSList, `{"entries":[` + entry + `],"cursor":"x"}`, true}, {api.FSList, `{}`, true}, {api.FSList, `{"entry":` + entry + `}`, false},
		{api.FSMkdir, `{}`, true}, {api.FSMkdir, `{"target":"x"}`, false}, {api.FSRemove, `{"cursor":"x"}`, false},
		{api.FSReadlink, `{"target":"x"}`, true}, {api.FSReadlink, `{"target":"x","targetBytes":"/w=="}`, false}, {api.FSReadlink, `{}`, false},
	} {
		l.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.TypeJSON)
			_, _ = io.WriteString(w, tt.answer)
		}
		_, err := c.FS(t.Context(), "ws", "sb-1", api.FSRequest{Op: tt.op, Path: "a"})
		if (err == nil) != tt.fine {
			t.Errorf("%s answered by %s: %v", tt.op, tt.answer, err)
		}
	}
}

func TestRenewAndGetAreOfTheirSandbox(t *testing.T) {
	l, c, _ := newLiar(t)
	body := func(text string) {
		l.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.TypeJSON)
			_, _ = io.WriteString(w, text)
		}
	}
	body(`{"sandboxId":"sb-1","expiresAt":"2026-01-02T03:04:05.678Z"}`)
	if at, err := c.Renew(t.Context(), "ws", "sb-1"); err != nil || at.UnixMilli() != 1767323045678 {
		t.Errorf("%v, %v", at, err)
	}
	for _, text := range []string{`{"sandboxId":"sb-2","expiresAt":"2026-01-02T03:04:05Z"}`, `{"sandboxId":"sb-1","expiresAt":"soon"}`} {
		body(text)
		_, err := c.Renew(t.Context(), "ws", "sb-1")
		codeIs(t, err, api.ResponseInvalid)
	}
	state := `{"sandboxId":"sb-1","workspaceId":"ws","state":"ready","reason":"","expiresAt":"","generation":1,"usage":{"bytes":0,"bytesLimit":0,"inodes":0,"inodesLimit":0}}`
	body(state)
	if _, err := c.Get(t.Context(), "ws", "sb-1"); err != nil {
		t.Error(err)
	}
	body(strings.Replace(state, `"ws"`, `"other"`, 1))
	_, err := c.Get(t.Context(), "ws", "sb-1")
	codeIs(t, err, api.ResponseInvalid)
}
