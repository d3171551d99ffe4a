// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/json"
	"net/url"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// On asks for an operation on a sandbox; tail follows its path.
func On(sb target.Sandbox, op, method, tail string, body []byte) target.RawRequest {
	return target.RawRequest{
		Op: op, Method: method, Target: "/v1/sandboxes/" + sb.ID() + tail, WorkspaceID: sb.WorkspaceID(), SandboxID: sb.ID(), Body: body,
	}
}

// Exec asks for one command of at most 20 s and 64 KiB of output.
func Exec(sb target.Sandbox, invocation string, argv ...string) target.RawRequest {
	body, _ := json.Marshal(map[string]any{ // of strings and numbers
		"invocationId": invocation, "argv": argv, "cwd": "", "timeoutMs": 20_000, "maxOutputBytes": 65_536,
	})
	return On(sb, "exec", "POST", "/exec", body)
}

// FS asks for one workspace operation.
func FS(sb target.Sandbox, op, path string) target.RawRequest {
	body, _ := json.Marshal(map[string]any{"op": op, "path": path})
	return On(sb, "fs", "POST", "/fs", body)
}

// Write asks for a file to be made or replaced.
func Write(sb target.Sandbox, path string, body []byte) target.RawRequest {
	return On(sb, "write", "PUT", "/files?path="+url.QueryEscape(path)+"&mode=replace", body)
}

// File asks for a file's bytes.
func File(sb target.Sandbox, path string) target.RawRequest {
	return On(sb, "read", "GET", "/files?path="+url.QueryEscape(path), nil)
}

// Lifetime of the capabilities of [Sign]: the protocol's longest, so that age refuses nothing.
const Lifetime = 300 * time.Second

// Sign mints a capability for req and returns both as the bytes to send.
func Sign(ctx context.Context, a target.Authority, req target.RawRequest) (Request, error) {
	token, err := a.Mint(ctx, req, Lifetime)
	return With(req, token), err
}

// With is req with this capability.
func With(req target.RawRequest, token string) Request {
	r := Request{Method: req.Method, Target: req.Target, Header: []string{Bearer(token), "Connection: close"}, Body: req.Body}
	for name, value := range req.Header {
		r.Header = append(r.Header, name+": "+value)
	}
	return r
}
