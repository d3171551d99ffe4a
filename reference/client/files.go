// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

const typeBytes = "application/octet-stream"

// FS runs one workspace operation.
func (c *Client) FS(ctx context.Context, workspaceID, sandboxID string, req api.FSRequest) (api.FSResponse, error) {
	var out api.FSResponse
	repeat := req.Op == api.FSStat || req.Op == api.FSList || req.Op == api.FSReadlink
	if err := c.call(ctx, onSandbox(api.OpFS, http.MethodPost, workspaceID, sandboxID, "/fs"), req, http.StatusOK, &out, repeat); err != nil {
		return api.FSResponse{}, err
	}
	entry, page := out.Entry != nil, out.Entries != nil || out.Cursor != ""
	target := out.Target != "" || out.TargetBytes != nil
	both := out.Target != "" && out.TargetBytes != nil
	if entry != (req.Op == api.FSStat) || page && req.Op != api.FSList || target != (req.Op == api.FSReadlink) || both || len(out.Entries) > api.MaxListRows {
		return api.FSResponse{}, api.E(api.ResponseInvalid, fmt.Errorf("an answer that is none of %s", req.Op))
	}
	return out, nil
}

// File is the content of a file as it arrives.
type File struct {
	Size int64 // bytes in all
	body io.ReadCloser
	left int64
}

// Open reads a file without holding it in memory. path is bytes. The caller closes the file.
func (c *Client) Open(ctx context.Context, workspaceID, sandboxID, path string) (*File, error) {
	if _, err := c.known(ctx); err != nil {
		return nil, err
	}
	res, err := c.open(ctx, onSandbox(api.OpRead, http.MethodGet, workspaceID, sandboxID, "/files?"+pathQuery(path).Encode()), nil)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		raw, err := finish(api.OpRead, res, api.MaxAnswerBytes)
		if err != nil {
			return nil, err
		}
		if raw.Code == api.Unauthenticated {
			_, _ = c.Health(ctx) // the next request knows a new boot epoch
		}
		return nil, raw.into(http.StatusOK, nil)
	}
	err = typed(res.Header, typeBytes)
	if err == nil && res.ContentLength < 0 {
		err = api.E(api.ResponseInvalid, errors.New("a file of unknown length"))
	}
	if err != nil {
		return nil, errors.Join(err, res.Body.Close())
	}
	return &File{Size: res.ContentLength, body: res.Body, left: res.ContentLength}, nil
}

// Read implements [io.Reader]. io.EOF means that the file is whole; when the connection ends
// before, the error is STREAM_CLOSED.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.body.Read(p)
	f.left -= int64(n)
	switch {
	case err == nil, errors.Is(err, io.EOF) && f.left == 0:
		return n, err
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF // never to be taken for the end of the file
	}
	return n, lost(api.OpRead, err)
}

// Close gives the connection up. Before the end of the file this is no error.
func (f *File) Close() error { return f.body.Close() }

// Read returns a file's bytes, at most 1 GiB. path is bytes.
func (c *Client) Read(ctx context.Context, workspaceID, sandboxID, path string) ([]byte, error) {
	f, err := c.Open(ctx, workspaceID, sandboxID, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size > maxFile {
		return nil, api.E(api.ResponseInvalid, fmt.Errorf("a file of %d bytes, at most %d are read whole", f.Size, maxFile))
	}
	return io.ReadAll(f)
}

// WriteOptions of [Client.Write]. The zero value creates a file of mode 0644.
type WriteOptions struct {
	Replace    bool // an existing file is replaced instead of refused
	Executable bool // mode 0755

	// Append adds to a file that exists with exactly ExpectedSize bytes; Replace and Executable
	// do not go with it.
	Append       bool
	ExpectedSize int64
}

// Write stores body at path atomically. It is sent once.
func (c *Client) Write(ctx context.Context, workspaceID, sandboxID, path string, body []byte, o WriteOptions) (api.WriteResponse, error) {
	return c.WriteFrom(ctx, workspaceID, sandboxID, path, bytes.NewReader(body), int64(len(body)), api.Digest(body), o)
}

// WriteFrom is Write for a body that is not in memory: size bytes of body whose digest is known
// before, since the capability covers it. A body that has another size, or fails, is
// REQUEST_INVALID; one that has another digest is UNAUTHENTICATED. Either stores nothing. After a
// refusal that comes before the end of the body, one Read of it may still be in progress.
func (c *Client) WriteFrom(ctx context.Context, workspaceID, sandboxID, path string, body io.Reader, size int64, digest string, o WriteOptions) (api.WriteResponse, error) {
	q := pathQuery(path)
	switch {
	case o.Append && (o.Replace || o.Executable), !o.Append && o.ExpectedSize != 0, size < 0:
		return api.WriteResponse{}, api.E(api.RequestInvalid, errors.New("write options that exclude each other, or a negative size"))
	case o.Append:
		q.Set("mode", api.WriteAppend)
		q.Set("expectedSize", strconv.FormatInt(o.ExpectedSize, 10))
	case o.Replace:
		q.Set("mode", api.WriteReplace)
	default:
		q.Set("mode", api.WriteCreate)
	}
	if o.Executable {
		q.Set("executable", "true")
	}
	raw := onSandbox(api.OpWrite, http.MethodPut, workspaceID, sandboxID, "/files?"+q.Encode())
	raw.Header = http.Header{"Content-Type": {typeBytes}}
	from := &exact{from: body, left: size}
	if size == 0 { // net/http will not read it
		_, _ = from.Read(nil)
		if err := from.failure(); err != nil {
			return api.WriteResponse{}, api.E(api.RequestInvalid, err)
		}
	}
	res, err := c.open(ctx, raw, &source{from: from, size: size, digest: digest})
	if err == nil {
		var answer RawResponse
		if answer, err = finish(api.OpWrite, res, api.MaxAnswerBytes); err == nil {
			var out api.WriteResponse
			if err = answer.into(http.StatusOK, &out); err == nil {
				return out, stored(out, o, size, digest)
			}
			if answer.Code == api.Unauthenticated {
				_, _ = c.Health(ctx) // the next request knows a new boot epoch
			}
		}
	}
	if ferr := from.failure(); ferr != nil {
		return api.WriteResponse{}, api.E(api.RequestInvalid, errors.Join(ferr, err))
	}
	return api.WriteResponse{}, err
}

func stored(out api.WriteResponse, o WriteOptions, size int64, digest string) error {
	if out.Size != o.ExpectedSize+size || out.Digest != digest {
		return api.E(api.ResponseInvalid, errors.New("worker stored other bytes"))
	}
	return nil
}

// pathQuery names a path in the form that holds it without loss.
func pathQuery(path string) url.Values {
	if utf8.ValidString(path) {
		return url.Values{"path": {path}}
	}
	return url.Values{"pathBytes": {base64.StdEncoding.EncodeToString([]byte(path))}}
}
