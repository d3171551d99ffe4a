// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// execMargin is how long a stream of a command may last beyond the command's own time: the worker
// ends it 30 s after that at the latest, and has 30 s to tell.
const execMargin = 60 * time.Second

// Exec runs one command and waits for its outcome. It is sent once: on OUTCOME_UNKNOWN the
// command may have run. When ctx ends the worker ends the command.
func (c *Client) Exec(ctx context.Context, workspaceID, sandboxID string, req api.ExecRequest) (api.ExecResult, error) {
	var out api.ExecResult
	err := c.call(ctx, onSandbox(api.OpExec, http.MethodPost, workspaceID, sandboxID, "/exec"), req, http.StatusOK, &out, false)
	if err == nil {
		err = outcomeOf(req.InvocationID, out)
	}
	if err != nil {
		return api.ExecResult{}, err
	}
	return out, nil
}

// outcomeOf checks what no shape can say.
func outcomeOf(invocationID string, out api.ExecResult) error {
	if out.InvocationID != invocationID || (out.ExitCode == nil) == (out.Signal == "") {
		return api.E(api.ResponseInvalid, errors.New("outcome is of another invocation, or has not exactly one of exit code and signal"))
	}
	return nil
}

// ExecStream runs one command and gives each event to each as it comes: started, stdout, stderr
// and heartbeat. It returns the outcome, whose output is empty, or the failure that ended the
// invocation. It is sent once. A stream that ends, falls silent or lasts too long before its
// outcome is OUTCOME_UNKNOWN; one that is not what the wire allows is RESPONSE_INVALID, and brings
// no more than req.MaxOutputBytes. When ctx ends, or each returns an error, which is then
// returned, the connection is closed, and the worker ends the command.
func (c *Client) ExecStream(ctx context.Context, workspaceID, sandboxID string, req api.ExecRequest, each func(api.ExecEvent) error) (api.ExecResult, error) {
	bound := time.Duration(min(max(req.TimeoutMs, 0), api.MaxExecTimeoutMs)) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, bound+execMargin)
	defer cancel()
	raw, err := withJSON(onSandbox(api.OpExec, http.MethodPost, workspaceID, sandboxID, "/exec"), req)
	if err != nil {
		return api.ExecResult{}, err
	}
	raw.Header.Set("Accept", api.TypeNDJSON)
	// A line holds at most all output in base64.
	in, err := c.stream(ctx, raw, api.TypeNDJSON, int(min(max(req.MaxOutputBytes, 0), api.MaxOutputBytes))/3*4+4<<10)
	if err != nil {
		return api.ExecResult{}, err
	}
	defer in.close()
	run := invocation{req: req, each: each}
	return run.outcome(in)
}

// invocation follows the order of a stream's events.
type invocation struct {
	req     api.ExecRequest
	each    func(api.ExecEvent) error
	started bool
	bytes   int64
}

// outcome reads a stream to its end. Only a stream whose last line is a result, or a failure, and
// that ends there, has one.
func (r *invocation) outcome(in *stream) (api.ExecResult, error) {
	for {
		line, err := in.line()
		if err != nil {
			return api.ExecResult{}, err
		}
		var e api.ExecEvent
		if err := api.DecodeAnswer(line, &e); err != nil {
			return api.ExecResult{}, err
		}
		done, err := r.event(e)
		if err != nil {
			return api.ExecResult{}, err
		}
		if !done {
			continue
		}
		if err := in.end(); err != nil {
			return api.ExecResult{}, err
		}
		if e.Error != nil {
			return api.ExecResult{}, e.Error.Err()
		}
		return *e.Result, nil
	}
}

// event checks one event, and says whether it is the last one.
func (r *invocation) event(e api.ExecEvent) (last bool, err error) {
	invalid := func(format string, args ...any) (bool, error) {
		return false, api.E(api.ResponseInvalid, fmt.Errorf(format, args...))
	}
	data, result, failed := len(e.Data) > 0, e.Result != nil, e.Error != nil
	var shape bool
	switch e.Type {
	case api.ExecStarted:
		shape = !data && !result && !failed && e.InvocationID == r.req.InvocationID
	case api.ExecStdout, api.ExecStderr:
		shape = data && !result && !failed && e.InvocationID == ""
	case api.ExecHeartbeat:
		shape = !data && !result && !failed && e.InvocationID == ""
	case api.ExecEnded:
		shape = !data && result && !failed && e.InvocationID == ""
	case api.ExecFailed:
		shape = !data && !result && failed && e.InvocationID == ""
	}
	switch {
	case !shape:
		return invalid("an event of type %.20q with other members than it has", e.Type)
	case r.started == (e.Type == api.ExecStarted):
		return invalid("an event of type %s at the wrong place", e.Type)
	}
	r.started = true
	switch {
	case result && len(e.Result.Stdout)+len(e.Result.Stderr) != 0:
		return invalid("output in the result of a stream")
	case result:
		return true, outcomeOf(r.req.InvocationID, *e.Result)
	case failed:
		if err := e.Error.Err(); err.Code == api.ResponseInvalid {
			return false, err
		}
		return true, nil
	}
	if r.bytes += int64(len(e.Data)); r.bytes > r.req.MaxOutputBytes {
		return invalid("more than %d bytes of output", r.req.MaxOutputBytes)
	}
	return false, r.each(e)
}

// Cancel ends an invocation and returns its terminal outcome: a result when the command had ended
// by itself, else the failure, as the call of exec got it. Repeating it gives the same.
func (c *Client) Cancel(ctx context.Context, workspaceID, sandboxID, invocationID string) (api.ExecResult, error) {
	var out api.CancelResponse
	raw := onSandbox(api.OpCancel, http.MethodDelete, workspaceID, sandboxID, "/exec/"+invocationID)
	if err := c.call(ctx, raw, nil, http.StatusOK, &out, true); err != nil {
		return api.ExecResult{}, err
	}
	switch {
	case (out.Result == nil) == (out.Error == nil):
		return api.ExecResult{}, api.E(api.ResponseInvalid, errors.New("a cancel with no outcome, or two"))
	case out.Error != nil:
		return api.ExecResult{}, out.Error.Err()
	}
	if err := outcomeOf(invocationID, *out.Result); err != nil {
		return api.ExecResult{}, err
	}
	return *out.Result, nil
}
