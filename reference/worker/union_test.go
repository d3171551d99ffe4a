// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/filedigest"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"
	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/supervisor"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// ours are the failures that the packages of this module tell apart, by the name under which
// TestEveryFailureKindIsForced finds them, and the code of each when no layer has decided.
var ours = map[string]struct {
	err  error
	code api.Code
}{
	"api.Error":                 {api.E(api.SandboxOOM, nil), api.SandboxOOM},
	"capability.ErrClock":       {capability.ErrClock, api.Unavailable},
	"control.ErrBusy":           {control.ErrBusy, api.Unavailable},
	"control.ErrFrame":          {control.ErrFrame, api.Unavailable},
	"control.ErrLost":           {control.ErrLost, api.Unavailable},
	"control.ErrMAC":            {control.ErrMAC, api.Unavailable},
	"control.ErrSlow":           {control.ErrSlow, api.Unavailable},
	"control.SpawnError":        {&control.SpawnError{}, api.Unavailable},
	"credential.ErrFailed":      {credential.ErrFailed, api.Unavailable},
	"credential.ErrFrame":       {credential.ErrFrame, api.Unavailable},
	"credential.ErrNoPayload":   {credential.ErrNoPayload, api.Unavailable},
	"credential.ErrTimedOut":    {credential.ErrTimedOut, api.Unavailable},
	"credential.ErrTooLarge":    {credential.ErrTooLarge, api.Unavailable},
	"credential.ErrUnsafe":      {credential.ErrUnsafe, api.Unavailable},
	"credential.Reason":         {credential.Reason("reason"), api.Unavailable},
	"engine.ErrLaunch":          {engine.ErrLaunch, api.Unavailable},
	"engine.ErrNoAnswer":        {engine.ErrNoAnswer, api.Unavailable},
	"engine.ErrNoImage":         {engine.ErrNoImage, api.Unavailable},
	"engine.ErrNotCreated":      {engine.ErrNotCreated, api.Unavailable},
	"engine.ErrNotRunning":      {engine.ErrNotRunning, api.Unavailable},
	"engine.ErrStillThere":      {engine.ErrStillThere, api.Unavailable},
	"filedigest.ErrChanging":    {filedigest.ErrChanging, api.Unavailable},
	"loopimage.ErrBusy":         {loopimage.ErrBusy, api.Unavailable},
	"loopimage.ErrCorrupt":      {loopimage.ErrCorrupt, api.Unavailable},
	"loopimage.ErrMismatch":     {loopimage.ErrMismatch, api.Unavailable},
	"loopimage.ErrMissingMount": {loopimage.ErrMissingMount, api.Unavailable},
	"loopimage.ErrNotFound":     {loopimage.ErrNotFound, api.Unavailable},
	"loopimage.ErrReserve":      {loopimage.ErrReserve, api.Unavailable},
	"loopimage.ErrSpec":         {loopimage.ErrSpec, api.Unavailable},
	"loopimage.ErrTool":         {loopimage.ErrTool, api.Unavailable},
	"loopimage.ErrUsage":        {loopimage.ErrUsage, api.Unavailable},
	"quota.ErrBusy":             {quota.ErrBusy, api.Unavailable},
	"quota.ErrCorrupt":          {quota.ErrCorrupt, api.Unavailable},
	"quota.ErrHelper":           {quota.ErrHelper, api.Unavailable},
	"quota.ErrLocked":           {quota.ErrLocked, api.Unavailable},
	"quota.ErrMismatch":         {quota.ErrMismatch, api.Unavailable},
	"quota.ErrMissingMount":     {quota.ErrMissingMount, api.Unavailable},
	"quota.ErrNotFound":         {quota.ErrNotFound, api.Unavailable},
	"quota.ErrReserve":          {quota.ErrReserve, api.Unavailable},
	"quota.ErrSpec":             {quota.ErrSpec, api.Unavailable},
	"exitcode.ErrBusy":          {exitcode.ErrBusy, api.Unavailable},
	"exitcode.ErrChanged":       {exitcode.ErrChanged, api.Unavailable},
	"exitcode.ErrCorrupt":       {exitcode.ErrCorrupt, api.Unavailable},
	"exitcode.ErrExhausted":     {exitcode.ErrExhausted, api.Unavailable},
	"exitcode.ErrForeign":       {exitcode.ErrForeign, api.Unavailable},
	"exitcode.ErrMismatch":      {exitcode.ErrMismatch, api.Unavailable},
	"exitcode.ErrMissingMount":  {exitcode.ErrMissingMount, api.Unavailable},
	"exitcode.ErrNotEnforced":   {exitcode.ErrNotEnforced, api.Unavailable},
	"exitcode.ErrNotFound":      {exitcode.ErrNotFound, api.Unavailable},
	"exitcode.ErrOutsideLink":   {exitcode.ErrOutsideLink, api.Unavailable},
	"exitcode.ErrReserve":       {exitcode.ErrReserve, api.Unavailable},
	"exitcode.ErrSpec":          {exitcode.ErrSpec, api.Unavailable},
	"exitcode.ErrTooLarge":      {exitcode.ErrTooLarge, api.Unavailable},
	"exitcode.ErrTool":          {exitcode.ErrTool, api.Unavailable},
	"exitcode.ErrUsage":         {exitcode.ErrUsage, api.Unavailable},
	"project.ErrBusy":           {project.ErrBusy, api.Unavailable},
	"project.ErrChanged":        {project.ErrChanged, api.Unavailable},
	"project.ErrCorrupt":        {project.ErrCorrupt, api.Unavailable},
	"project.ErrExhausted":      {project.ErrExhausted, api.Unavailable},
	"project.ErrForeign":        {project.ErrForeign, api.Unavailable},
	"project.ErrMismatch":       {project.ErrMismatch, api.Unavailable},
	"project.ErrMissingMount":   {project.ErrMissingMount, api.Unavailable},
	"project.ErrNotEnforced":    {project.ErrNotEnforced, api.Unavailable},
	"project.ErrNotFound":       {project.ErrNotFound, api.Unavailable},
	"project.ErrOutsideLink":    {project.ErrOutsideLink, api.Unavailable},
	"project.ErrReserve":        {project.ErrReserve, api.Unavailable},
	"project.ErrSpec":           {project.ErrSpec, api.Unavailable},
	"project.ErrTooLarge":       {project.ErrTooLarge, api.Unavailable},
	"project.ErrTool":           {project.ErrTool, api.Unavailable},
	"project.ErrUsage":          {project.ErrUsage, api.Unavailable},
	"project.FileError":         {&project.FileError{Path: "p", Err: project.ErrForeign}, api.Unavailable},
	"quota.ErrChanged":          {quota.ErrChanged, api.Unavailable},
	"quota.ErrExhausted":        {quota.ErrExhausted, api.Unavailable},
	"quota.ErrForeign":          {quota.ErrForeign, api.Unavailable},
	"quota.ErrNotEnforced":      {quota.ErrNotEnforced, api.Unavailable},
	"quota.ErrOutsideLink":      {quota.ErrOutsideLink, api.Unavailable},
	"quota.ErrTooLarge":         {quota.ErrTooLarge, api.Unavailable},
	"quota.ErrTool":             {quota.ErrTool, api.Unavailable},
	"state.ErrBroken":           {state.ErrBroken, api.Unavailable},
	"state.ErrClosed":           {state.ErrClosed, api.Unavailable},
	"state.ErrDamaged":          {state.ErrDamaged, api.Unavailable},
	"state.ErrExhausted":        {state.ErrExhausted, api.Unavailable},
	"state.ErrExpired":          {state.ErrExpired, api.Unavailable},
	"state.ErrLocked":           {state.ErrLocked, api.Unavailable},
	"state.ErrLost":             {state.ErrLost, api.Unavailable},
	"state.ErrMode":             {state.ErrMode, api.Unavailable},
	"state.ErrNotFound":         {state.ErrNotFound, api.Unavailable},
	"state.ErrReplay":           {state.ErrReplay, api.Unavailable},
	"state.ErrUnsafe":           {state.ErrUnsafe, api.Unavailable},
	"strictjson.ErrEncoded":     {strictjson.ErrEncoded, api.Unavailable},
	"strictjson.ErrLimit":       {strictjson.ErrLimit, api.Unavailable},
	"strictjson.ErrNumber":      {strictjson.ErrNumber, api.Unavailable},
	"strictjson.ErrSchema":      {strictjson.ErrSchema, api.Unavailable},
	"strictjson.ErrSyntax":      {strictjson.ErrSyntax, api.Unavailable},
	"supervisor.ErrImpostor":    {supervisor.ErrImpostor, api.Unavailable},
	"workspace.ErrAccess":       {workspace.ErrAccess, api.RequestInvalid},
	"workspace.ErrBody":         {workspace.ErrBody, api.RequestInvalid},
	"workspace.ErrClosed":       {workspace.ErrClosed, api.Unavailable},
	"workspace.ErrDigest":       {workspace.ErrDigest, api.Unauthenticated},
	"workspace.ErrExists":       {workspace.ErrExists, api.AlreadyExists},
	"workspace.ErrIsDir":        {workspace.ErrIsDir, api.RequestInvalid},
	"workspace.ErrMoved":        {workspace.ErrMoved, api.Unavailable},
	"workspace.ErrNotDir":       {workspace.ErrNotDir, api.PathNotFound},
	"workspace.ErrNotEmpty":     {workspace.ErrNotEmpty, api.AlreadyExists},
	"workspace.ErrNotFound":     {workspace.ErrNotFound, api.PathNotFound},
	"workspace.ErrNotLink":      {workspace.ErrNotLink, api.RequestInvalid},
	"workspace.ErrPrimitive":    {workspace.ErrPrimitive, api.PathPrimitiveUnavailable},
	"workspace.ErrQuota":        {workspace.ErrQuota, api.QuotaExceeded},
	"workspace.ErrRequest":      {workspace.ErrRequest, api.RequestInvalid},
	"workspace.ErrSize":         {workspace.ErrSize, api.IdempotencyConflict},
	"workspace.ErrUnsafe":       {workspace.ErrUnsafe, api.PathUnsafe},
	"workspace.Error":           {&workspace.Error{Op: "open", Path: []byte("p"), Err: workspace.ErrExists}, api.AlreadyExists},
}

// foreign are failures of the standard library, the kernel and of nobody.
var foreign = map[string]struct {
	err  error
	code api.Code
}{
	"plain":             {errors.New("plain"), api.Unavailable},
	"deadline":          {context.DeadlineExceeded, api.Timeout},
	"cancelled":         {context.Canceled, api.ExecAborted},
	"os deadline":       {os.ErrDeadlineExceeded, api.Unavailable},
	"closed connection": {net.ErrClosed, api.Unavailable},
	"operation":         {&net.OpError{Op: "read", Err: unix.ECONNRESET}, api.Unavailable},
	"EOF":               {io.EOF, api.Unavailable},
	"unexpected EOF":    {io.ErrUnexpectedEOF, api.Unavailable},
	"path":              {&fs.PathError{Op: "open", Path: "/etc/shadow", Err: unix.EACCES}, api.Unavailable},
	"errno":             {unix.ENOSPC, api.Unavailable},
	"unknown code":      {api.E("REMOTE_WORKER_MADE_UP", nil), api.Unavailable},
	"no code":           {api.E("", nil), api.Unavailable},
	"lower case code":   {api.E("remote_worker_timeout", nil), api.Unavailable},
	"code in a code":    {api.E("REMOTE_WORKER_MADE_UP", api.E(api.PathNotFound, nil)), api.Unavailable},
	"known in known":    {api.E(api.EngineFailed, api.E(api.PathNotFound, nil)), api.EngineFailed},
}

// TestEveryFailureKindIsForced reads the sources: an exported sentinel, or an exported type that
// is an error, without a row above fails here, and so does a row without one.
func TestEveryFailureKindIsForced(t *testing.T) {
	found := map[string]bool{}
	for _, root := range []string{"..", "../../strictjson"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, name := range failures(f) {
				found[f.Name.Name+"."+name] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(found) < 50 {
		t.Fatalf("only %d kinds found", len(found))
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, ok := ours[name]; !ok {
			t.Errorf("%s is not forced through the server", name)
		}
	}
	for name := range ours {
		if !found[name] {
			t.Errorf("%s is in the table and not in the sources", name)
		}
	}
}

// failures lists the exported variables that are named like a sentinel, and the exported types with
// a method of error.
func failures(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
					for _, n := range v.Names {
						if strings.HasPrefix(n.Name, "Err") {
							names = append(names, n.Name)
						}
					}
				}
			}
		case *ast.FuncDecl:
			if d.Name.Name != "Error" || d.Recv == nil || len(d.Type.Params.List) != 0 {
				continue
			}
			t := d.Recv.List[0].Type
			if star, ok := t.(*ast.StarExpr); ok {
				t = star.X
			}
			if id, ok := t.(*ast.Ident); ok && id.IsExported() {
				names = append(names, id.Name)
			}
		}
	}
	return names
}

// place is where a failure comes from, and the request that meets it there.
type place struct {
	name    string
	set     func(*rig, func() error)
	req     client.RawRequest
	decides map[string]api.Code // what this place decides by itself; "" for all else
}

func places(r *rig) []place {
	call := func(r *rig, f func() error) { r.fake.mu.Lock(); r.fake.failing = f; r.fake.mu.Unlock() }
	on := func(op api.Op, method, target, body string, header ...string) client.RawRequest {
		req := client.RawRequest{Op: op, Method: method, Target: target, WorkspaceID: "ws", Body: []byte(body), Header: map[string][]string{}}
		if op.OnSandbox() {
			req.SandboxID = "sb"
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return req
	}
	create, err := strictjson.Marshal(r.createRequest("ws"))
	if err != nil {
		r.t.Fatal(err)
	}
	const sb = "/v1/sandboxes/sb"
	const exec = execBody
	return []place{
		{"nonce", func(r *rig, f func() error) { r.nonces.set(f) }, on(api.OpGet, "GET", sb, ""), map[string]api.Code{
			"state.ErrReplay": api.CapabilityReplay, "state.ErrExpired": api.CapabilityExpired, "state.ErrExhausted": api.NonceStoreExhausted,
			"": api.Unavailable, // whatever else a store says
		}},
		{"create", call, on(api.OpCreate, "POST", "/v1/sandboxes", string(create)), nil},
		{"get", call, on(api.OpGet, "GET", sb, ""), nil},
		{"exec", call, on(api.OpExec, "POST", execTarget, exec), nil},
		{"exec, streamed", call, on(api.OpExec, "POST", execTarget, exec, "Accept", api.TypeNDJSON), nil},
		{"cancel", call, on(api.OpCancel, "DELETE", execTarget+"/i1", ""), nil},
		{"renew", call, on(api.OpRenew, "POST", sb+"/renew", ""), nil},
		{"fs", call, on(api.OpFS, "POST", sb+"/fs", `{"op":"stat","path":"a"}`), nil},
		{"read", call, on(api.OpRead, "GET", sb+"/files?path=a", ""), nil},
		{"write", call, on(api.OpWrite, "PUT", sb+"/files?mode=create&path=a", "text"), nil},
		{"events", call, on(api.OpEvents, "GET", sb+"/events", ""), nil},
		{"dispose", call, on(api.OpDispose, "DELETE", sb, ""), nil},
		{"purge", call, on(api.OpPurge, "DELETE", "/v1/workspaces/ws", ""), nil},
	}
}

// failingNonces fails as it is told, or remembers nothing.
type failingNonces struct {
	mu sync.Mutex
	f  func() error
}

func (n *failingNonces) set(f func() error) { n.mu.Lock(); n.f = f; n.mu.Unlock() }

func (n *failingNonces) ConsumeNonce(context.Context, string, string, int64) error {
	n.mu.Lock()
	f := n.f
	n.mu.Unlock()
	if f == nil {
		return nil
	}
	return f()
}

// everyLine lets the next refusals be logged, whoever causes them.
func (r *rig) everyLine() {
	r.server.lines.mu.Lock()
	defer r.server.lines.mu.Unlock()
	r.server.lines.written = 0
}

// TestUnionIsClosed forces every kind of failure at every place, and in every form that Go gives
// an error, through the running server. The wire shows the code, its status, its fixed sentence and
// a request id, and nothing of the cause; the log has the cause beside the same id.
func TestUnionIsClosed(t *testing.T) {
	r := newRig(t, tweak{forgetful: true})
	if _, err := r.client.Health(t.Context()); err != nil { // the epoch is asked for once
		t.Fatal(err)
	}
	n := 0
	force := func(t *testing.T, p place, want api.Code, fail func(canary string) error, logged bool) {
		t.Helper()
		n++
		r.everyLine()
		canary := fmt.Sprintf("canary-%d-", n)
		p.set(r, func() error { return fail(canary) })
		res, err := r.client.Raw(t.Context(), p.req)
		p.set(r, nil)
		if err != nil {
			t.Fatalf("%s: no whole answer: %v", p.name, err)
		}
		e := api.DecodeError(res.Status, res.Body) // checks status, sentence and shape
		if e.Code != want {
			t.Errorf("%s: got %d %s, want %s", p.name, res.Status, res.Body, want)
		}
		if wire := fmt.Sprint(res.Header, string(res.Body)); strings.Contains(wire, "canary") || strings.Contains(wire, ".go") {
			t.Errorf("%s: the cause is on the wire: %s", p.name, wire)
		}
		_, id, _ := strings.Cut(string(res.Body), `"requestId":"`)
		id, _, _ = strings.Cut(id, `"`)
		line := r.log.line(`"request":"` + id + `"`)
		if line == "" || len(line) > 8<<10 || strings.Contains(line, canary) != logged {
			t.Errorf("%s: the log says %.500q of request %s", p.name, line, id)
		}
		r.log.reset()
	}
	all := maps.Clone(ours)
	maps.Copy(all, foreign)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		row := all[name]
		t.Run(name, func(t *testing.T) {
			for _, p := range places(r) {
				want := row.code
				if d, ok := p.decides[name]; ok {
					want = d
				} else if d, ok := p.decides[""]; ok {
					want = d
				}
				force(t, p, want, func(canary string) error { return fmt.Errorf("open /var/lib/%s: %w", canary, row.err) }, true)
			}
			p := places(r)[3]
			for form, f := range map[string]func(string) error{
				"joined, last":    func(c string) error { return errors.Join(errors.New(c), row.err) },
				"joined, first":   func(c string) error { return errors.Join(row.err, errors.New(c)) },
				"twice wrapped":   func(c string) error { return fmt.Errorf("a: %w", fmt.Errorf("%s: %w", c, row.err)) },
				"very long":       func(c string) error { return fmt.Errorf("%s %s: %w", c, strings.Repeat("a", 1<<20), row.err) },
				"with many lines": func(c string) error { return fmt.Errorf("%s\n\"}\n\x00\xff: %w", c, row.err) },
			} {
				t.Run(form, func(t *testing.T) { force(t, p, row.code, f, true) })
			}
			t.Run("below a code", func(t *testing.T) {
				force(t, p, api.IncompleteCleanup, func(c string) error {
					return api.E(api.IncompleteCleanup, fmt.Errorf("%s: %w", c, row.err))
				}, true)
			})
			t.Run("below an unknown code", func(t *testing.T) {
				force(t, p, api.Unavailable, func(c string) error {
					return api.E("REMOTE_WORKER_MADE_UP", fmt.Errorf("%s: %w", c, row.err))
				}, true)
			})
			t.Run("as a panic", func(t *testing.T) {
				force(t, p, api.Unavailable, func(c string) error { panic(fmt.Errorf("%s: %w", c, row.err)) }, false)
				if strings.Contains(r.log.String(), "canary") {
					t.Error("the log has the value of a panic")
				}
			})
		})
	}
	for _, code := range api.Codes() {
		force(t, places(r)[3], code, func(c string) error { return api.E(code, errors.New(c)) }, true)
	}
}
