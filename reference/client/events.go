// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// maxEventLine bounds one line of an event stream in bytes: two paths of 4096 bytes, in which JSON
// may write each byte as six, and room.
const maxEventLine = 2*6*api.MaxPathBytes + 4<<10

// Events is a stream of changes of a workspace.
type Events struct{ in *stream }

// Events follows the changes of a workspace. When it returns, the worker watches: no change after
// that is missed without an event of type overflow. ctx is the life of the stream, which holds one
// connection until [Events.Close].
func (c *Client) Events(ctx context.Context, workspaceID, sandboxID string) (*Events, error) {
	in, err := c.stream(ctx, onSandbox(api.OpEvents, http.MethodGet, workspaceID, sandboxID, "/events"), api.TypeEvents, maxEventLine)
	if err != nil {
		return nil, err
	}
	line, err := in.line()
	if err == nil && string(line) != ": ready" {
		err = api.E(api.ResponseInvalid, fmt.Errorf("an event stream that begins with %.20q", line))
	}
	if err != nil {
		in.close()
		return nil, err
	}
	return &Events{in}, nil
}

// Close ends the stream. It may be repeated, but not beside a running loop over All: leave the
// loop, or end the context, instead.
func (e *Events) Close() { e.in.close() }

// All gives the changes as they come. The last pair has an error and no change: the worker's reason
// for the end (SANDBOX_EXPIRED, UNAVAILABLE and so on), STREAM_CLOSED when the stream broke or fell
// silent, or RESPONSE_INVALID. All is to be used once; leaving the loop ends the stream.
func (e *Events) All() iter.Seq2[api.ChangeEvent, error] {
	return func(yield func(api.ChangeEvent, error) bool) {
		defer e.Close()
		for {
			change, err := e.next()
			if !yield(change, err) || err != nil {
				return
			}
		}
	}
}

// next reads one event: the fields event and data, once each, and an empty line.
func (e *Events) next() (api.ChangeEvent, error) {
	var kind, data string
	for {
		line, err := e.in.line()
		if err != nil {
			return api.ChangeEvent{}, err
		}
		name, value, _ := strings.Cut(string(line), ": ")
		switch {
		case len(line) == 0 && kind == "" && data == "", strings.HasPrefix(string(line), ":"):
			continue // a comment, which may be a heartbeat, and the line behind it
		case len(line) == 0:
			return e.event(kind, []byte(data))
		case name == "event" && kind == "":
			kind = value
			continue
		case name == "data" && data == "":
			data = value
			continue
		}
		return api.ChangeEvent{}, api.E(api.ResponseInvalid, fmt.Errorf("a line that is none of an event: %.40q", line))
	}
}

func (e *Events) event(kind string, data []byte) (api.ChangeEvent, error) {
	switch kind {
	case "change":
		var change api.ChangeEvent
		if err := api.DecodeAnswer(data, &change); err != nil {
			return api.ChangeEvent{}, err
		}
		return change, checkChange(change)
	case "end":
		var d api.ErrorDetail
		if err := api.DecodeAnswer(data, &d); err != nil {
			return api.ChangeEvent{}, err
		}
		return api.ChangeEvent{}, d.Err()
	}
	return api.ChangeEvent{}, api.E(api.ResponseInvalid, fmt.Errorf("an event named %.20q", kind))
}

// checkChange demands what [api.ChangeEvent] says. Paths are of the tenant's choice, but never ones
// that a request could not name.
func checkChange(c api.ChangeEvent) error {
	path, from := c.Path != "" || c.PathBytes != nil, c.From != "" || c.FromBytes != nil
	ok := c.Path == "" || c.PathBytes == nil
	ok = ok && (c.From == "" || c.FromBytes == nil)
	switch c.Type {
	case api.ChangeCreated, api.ChangeModified, api.ChangeRemoved:
		ok = ok && path && !from
	case api.ChangeMoved:
		ok = ok && path && from
	case api.ChangeOverflow:
		ok = ok && !path && !from && c.Kind == ""
	default:
		ok = false
	}
	for _, p := range []string{c.Path, string(c.PathBytes), c.From, string(c.FromBytes)} {
		ok = ok && (p == "" || api.CheckPath([]byte(p)) == nil)
	}
	if !ok {
		return api.E(api.ResponseInvalid, errors.New("a change that is none of its type"))
	}
	return nil
}
