// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// coded turns an error of the client into the suite's form.
func coded(err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return &target.Error{Code: string(e.Code), Kind: kinds[e.Code], Cause: err}
	}
	return err
}

// kinds says what a code of the worker means in the suite's words. The other codes have no kind on
// purpose: they are of the protocol, or leave open what became of the request. A test goes through
// the whole union.
var kinds = map[api.Code]target.Kind{
	api.SandboxOOM:                 target.KindOOM,
	api.SandboxDied:                target.KindDied,
	api.SandboxNotFound:            target.KindGone,
	api.SandboxExpired:             target.KindGone,
	api.SandboxDisposed:            target.KindGone,
	api.PathUnsafe:                 target.KindPathUnsafe,
	api.PathNotFound:               target.KindNotFound,
	api.QuotaExceeded:              target.KindNoSpace,
	api.CreateConcurrencyExhausted: target.KindBusy,
	api.ExecConcurrencyExhausted:   target.KindBusy,
	api.NonceStoreExhausted:        target.KindBusy,
	api.Unqualified:                target.KindUnqualified,
	api.PathPrimitiveUnavailable:   target.KindUnsupported,
}

// runtime is the tenant's client.
type runtime struct{ *driver }

func (r runtime) Describe(ctx context.Context) (target.Description, error) {
	h, err := r.client.Health(ctx)
	if err != nil {
		return target.Description{}, coded(err)
	}
	d := target.Description{
		Driver: "api", Mode: string(h.Mode), Version: h.ProtocolVersion, WorkerID: h.WorkerID, Claims: h.Features, CohortID: h.CohortID,
		Digests: map[string]string{"pins": h.PinsDigest},
	}
	if r.run != nil {
		for role, digest := range r.run.digests {
			d.Digests[role] = digest
		}
	}
	return d, nil
}

// idleTimeout is longer than any case lets a sandbox rest.
const idleTimeout = 10 * time.Minute

// request is a fresh create request for spec, with the expectations that the worker's signed
// health answer gives.
func (d *driver) request(ctx context.Context, spec target.Spec) (api.CreateRequest, error) {
	spec = spec.WithDefaults()
	session, err := capability.Random()
	if err != nil {
		return api.CreateRequest{}, err
	}
	if session = "s" + session; spec.SessionID != "" {
		session = spec.SessionID
	}
	lease, err := capability.Random()
	if err != nil {
		return api.CreateRequest{}, err
	}
	return d.client.FillExpected(ctx, api.CreateRequest{
		WorkspaceID: spec.WorkspaceID, SessionID: session, ClientLeaseID: "l" + lease,
		IdleTimeoutMs: min(idleTimeout, spec.HardTimeout).Milliseconds(), HardTimeoutMs: spec.HardTimeout.Milliseconds(), Image: spec.Image,
		Resources: api.Resources{
			CPUs: api.Milli(spec.CPUs), MemoryBytes: spec.MemoryBytes, PIDs: spec.PIDs,
			WorkspaceBytes: spec.WorkspaceBytes, WorkspaceInodes: spec.WorkspaceInodes,
		},
	})
}

func (r runtime) Create(ctx context.Context, spec target.Spec) (target.Sandbox, error) {
	req, err := r.request(ctx, spec)
	if err != nil {
		return nil, coded(err)
	}
	lease, err := r.client.Create(ctx, req)
	if err != nil {
		return nil, coded(err)
	}
	return sandbox{r.driver, lease.SandboxID, req.WorkspaceID}, nil
}

func (r runtime) Purge(ctx context.Context, ws string) error {
	err := coded(r.client.Purge(ctx, ws))
	if code := target.CodeOf(err); code == string(api.SandboxNotFound) || code == string(api.PathNotFound) {
		return nil // not every kind that says "gone": a disposed sandbox's workspace must still be purged
	}
	return err
}

type sandbox struct {
	*driver
	id, ws string
}

func (s sandbox) ID() string          { return s.id }
func (s sandbox) WorkspaceID() string { return s.ws }

func (s sandbox) Exec(ctx context.Context, cmd target.Command) (target.Result, error) {
	if cmd.ID == "" {
		id, err := capability.Random()
		if err != nil {
			return target.Result{}, err
		}
		cmd.ID = "i" + id
	}
	if cmd.Timeout == 0 {
		cmd.Timeout = 30 * time.Second
	}
	if cmd.MaxOutput == 0 {
		cmd.MaxOutput = 1 << 20
	}
	res, err := s.client.Exec(ctx, s.ws, s.id, api.ExecRequest{
		InvocationID: cmd.ID, Argv: cmd.Argv, Cwd: cmd.Cwd, Stdin: cmd.Stdin, TimeoutMs: cmd.Timeout.Milliseconds(), MaxOutputBytes: cmd.MaxOutput,
	})
	if err != nil {
		return target.Result{}, coded(err)
	}
	out := target.Result{
		Stdout: res.Stdout, Stderr: res.Stderr, ExitCode: -1, Signal: res.Signal, Duration: time.Duration(res.DurationMs) * time.Millisecond,
		TruncatedStdout: res.Truncated.Stdout, TruncatedStderr: res.Truncated.Stderr, DroppedBytes: res.Truncated.DroppedBytes,
		DescendantsKilled: res.DescendantsKilled, CleanupProven: res.CleanupProven, TimedOut: res.TimedOut,
	}
	if res.ExitCode != nil {
		out.ExitCode = *res.ExitCode
	}
	return out, nil
}

func (s sandbox) State(ctx context.Context) (string, error) {
	st, err := s.client.Get(ctx, s.ws, s.id)
	err = coded(err)
	if target.KindOf(err) == target.KindGone {
		return "gone", nil
	}
	return st.State, err
}

func (s sandbox) Dispose(ctx context.Context) error {
	err := coded(s.client.Dispose(ctx, s.ws, s.id))
	if target.CodeOf(err) == string(api.SandboxDisposed) {
		return nil
	}
	return err
}

func (s sandbox) Files() target.Files { return files{s} }

// files is the workspace API of one sandbox.
type files struct{ sandbox }

func (f files) Read(ctx context.Context, path string) ([]byte, error) {
	b, err := f.client.Read(ctx, f.ws, f.id, path)
	return b, coded(err)
}

func (f files) Write(ctx context.Context, path string, body []byte) error {
	_, err := f.client.Write(ctx, f.ws, f.id, path, body, client.WriteOptions{Replace: true, Executable: true})
	return coded(err)
}

func (f files) Stat(ctx context.Context, path string) (target.Entry, error) {
	res, err := f.client.FS(ctx, f.ws, f.id, pathRequest(api.FSStat, path))
	if err != nil {
		return target.Entry{}, coded(err)
	}
	if res.Entry == nil {
		return target.Entry{}, &target.Error{Code: string(api.ResponseInvalid), Cause: errors.New("stat answers without an entry")}
	}
	name := res.Entry.Name
	if len(res.Entry.NameBytes) > 0 {
		name = string(res.Entry.NameBytes)
	}
	return target.Entry{Name: name, Kind: res.Entry.Kind, Size: res.Entry.Size}, nil
}

func (f files) Remove(ctx context.Context, path string) error {
	_, err := f.client.FS(ctx, f.ws, f.id, pathRequest(api.FSRemove, path))
	return coded(err)
}

// pathRequest names path in the form that holds its bytes without loss.
func pathRequest(op, path string) api.FSRequest {
	if utf8.ValidString(path) {
		return api.FSRequest{Op: op, Path: path}
	}
	return api.FSRequest{Op: op, PathBytes: []byte(path)}
}

// wire speaks the worker API with nothing repaired.
type wire struct{ *driver }

func (w wire) Raw(ctx context.Context, req target.RawRequest) (target.RawResponse, error) {
	raw := client.RawRequest{
		Op: api.Op(req.Op), Method: req.Method, Target: req.Target, WorkspaceID: req.WorkspaceID, SandboxID: req.SandboxID,
		Body: req.Body, Token: req.Token, Header: map[string][]string{},
	}
	for k, v := range req.Header {
		raw.Header.Set(k, v)
	}
	res, err := w.client.Raw(ctx, raw)
	if err != nil {
		return target.RawResponse{}, coded(err)
	}
	return target.RawResponse{Status: res.Status, Code: string(res.Code), Body: res.Body}, nil
}

func (w wire) CreateBody(ctx context.Context, spec target.Spec) ([]byte, error) {
	req, err := w.request(ctx, spec)
	if err != nil {
		return nil, coded(err)
	}
	return strictjson.Canonical(req)
}
