// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"net/http"
	"strings"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// call is a routed request. IDs are from the raw target and well-formed; nothing in them was
// percent-encoded, so the bytes that the capability covers are the bytes that are used.
type call struct {
	op         api.Op
	sandbox    string
	workspace  string // purge only
	invocation string // cancel only
	query      string // file transfers only
}

var errNoRoute = api.E(api.RequestInvalid, errors.New("no such route"))

// route reads the raw request target. net/http's own mux would clean paths and redirect, with
// answers that are not of the union.
func route(r *http.Request) (call, error) {
	path, query, hasQuery := strings.Cut(r.RequestURI, "?")
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		return call{}, errNoRoute
	}
	part := strings.Split(rest, "/")
	c := call{query: query}
	switch key := r.Method + " " + part[0]; {
	case key == "GET health" && len(part) == 1:
		c.op = api.OpHealth
	case key == "POST sandboxes" && len(part) == 1:
		c.op = api.OpCreate
	case key == "DELETE workspaces" && len(part) == 2 && api.ValidID(part[1]):
		c.op, c.workspace = api.OpPurge, part[1]
	case part[0] == "sandboxes" && len(part) >= 2 && api.ValidID(part[1]):
		c.sandbox = part[1]
		if r.Method == http.MethodDelete && len(part) == 4 && part[2] == "exec" && api.ValidID(part[3]) {
			c.op, c.invocation = api.OpCancel, part[3]
			break
		}
		c.op = sandboxOp(r.Method, part[2:])
	}
	transfer := c.op == api.OpRead || c.op == api.OpWrite
	if c.op == "" || hasQuery != transfer {
		return call{}, errNoRoute
	}
	return c, nil
}

func sandboxOp(method string, rest []string) api.Op {
	switch method + " " + strings.Join(rest, "/") {
	case "GET ":
		if len(rest) == 0 {
			return api.OpGet
		}
	case "DELETE ":
		if len(rest) == 0 {
			return api.OpDispose
		}
	case "POST exec":
		return api.OpExec
	case "POST fs":
		return api.OpFS
	case "GET files":
		return api.OpRead
	case "PUT files":
		return api.OpWrite
	case "GET events":
		return api.OpEvents
	case "POST renew":
		return api.OpRenew
	}
	return ""
}
