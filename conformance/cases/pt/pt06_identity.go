// SPDX-License-Identifier: Apache-2.0

package pt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// PT06 asks under names that are no identifiers, and under somebody else's.
var PT06 = conformance.Case{
	ID: "PT-06", Revision: 1, Title: "Identity smuggling",
	Requirement: "An identifier is letters, digits and . _ : - after a letter or digit, 128 at most, as its bytes stand; anything else is refused and goes nowhere. A capability reaches the sandbox and the workspace that it names, and nobody else's.",
	Threat:      "An id becomes a path, a label, a container's name or a line of a log; or one tenant names another's sandbox.",
	Attack:      "Signed creates with workspace, session and lease ids, execs with invocation ids, and targets with ids that hold slashes, dots, NUL, line ends, confusables, 10,000 letters and what shells and engines read. One tenant's sandbox under another's capability in every operation, a capability's sandbox beside another in the target, a body's workspace beside another in the capability. The true id spelt otherwise: percent-encoded, with dots, empty parts, another case, a trailing part.",
	Witness:     "Hostile ids that were refused (all); operations on a foreign sandbox that were refused (all); spellings that were refused (all).",
	Oracle:      "Status and code on the wire; the engine calls recorded meanwhile and the worker's containers, names and contents in the worker's folder and its logs, searched for a token inside the hostile ids; the other tenant's file on the host.",
	Precedent:   "hermes#44142",
	Tier:        conformance.Full, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartWire, conformance.PartTape, conformance.PartEngine, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m55", Reason: "hostile-id-accepted"}, {Mutant: "m56", Reason: "foreign-sandbox-served"}},
	Run:      runPT06,
}

// hostileIDs hold token, so that it can be searched for wherever an id may go.
func hostileIDs(token string) []string {
	return []string{
		"../" + token, "a/" + token, "/" + token, token + "/..", "./" + token, `..\` + token, "..",
		"-" + token, "." + token, "_" + token, ":" + token, "--privileged=" + token,
		token + "\x00", token + "\x00/../x", token + "\n" + token, token + "\r\nX: " + token, token + "\t", token + " ", " " + token, token + "\x1b[2J", token + "\x7f",
		"\u0430" + token, token + "\u2024", token + "\u200b", token + "\uff0f", token + "\u202e", token + "e\u0301",
		token + "@sha256", token + ",", token + "=1", token + "*", token + "$(id)", token + "`id`", token + ";id", token + "'", token + `"`, token + "%2f", token + "%00",
		token + strings.Repeat("a", 129-len(token)), token + strings.Repeat("a", 10_000), "",
	}
}

// smuggler is one run of PT-06.
type smuggler struct {
	t        *conformance.T
	mine, sb target.Sandbox // sb is the other tenant's
	spare    string         // a workspace for creates that are to be refused
	accepted bool           // a hostile create made a sandbox: no further one is asked for
}

func runPT06(ctx context.Context, t *conformance.T) error {
	// Arrange.
	s := &smuggler{t: t, mine: t.Sandbox(ctx, target.Spec{}), sb: t.Sandbox(ctx, target.Spec{}), spare: t.Spec(target.Spec{}).WorkspaceID}
	t.AdoptWorkspace(s.spare)
	if err := s.sb.Files().Write(ctx, "pt06-file", []byte("theirs")); err != nil {
		return err
	}
	theirs, err := attack.Container(ctx, t, s.sb)
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	token := t.Canary("hostile id")

	// Attack, judged answer by answer.
	if err := s.hostile(ctx, token); err != nil {
		return err
	}
	if err := s.foreign(ctx); err != nil {
		return err
	}
	if err := s.spellings(ctx); err != nil {
		return err
	}

	// Verdict from outside.
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	for _, c := range calls {
		if bytes.Contains(c.Body, []byte(token)) || strings.Contains(c.Path+c.Query, token) {
			t.Fail("id-at-engine", "%s %.60s carries a hostile id", c.Method, c.Path)
		}
	}
	ids, err := engine.Labelled(ctx, attack.LabelWorker, theirs.Labels[attack.LabelWorker])
	if err != nil {
		return err
	}
	for _, id := range ids {
		f, _, err := engine.Inspect(ctx, id)
		if err != nil {
			return err
		}
		if text := fmt.Sprint(f.Name, f.Labels, f.Env); strings.Contains(text, token) {
			t.Fail("id-at-engine", "a container carries a hostile id: %.200s", text)
		}
	}
	if err := s.folder(token); err != nil {
		return err
	}
	if b, err := os.ReadFile(filepath.Join(theirs.Workspace, "pt06-file")); err != nil || string(b) != "theirs" {
		t.Fail("foreign-sandbox-served", "the other tenant's file is %.40q, %v", b, err)
	}
	if state, err := s.sb.State(ctx); err != nil || state != "ready" {
		t.Fail("foreign-sandbox-served", "the other tenant's sandbox is %s, %v", state, err)
	}
	return nil
}

// refused judges one answer: an id that is none must not get as far as a question about it.
func (s *smuggler) refused(what string, a wire.Answer, codes ...string) {
	code, err := wire.Refusal(a)
	switch {
	case a.Status < 400 || err == nil && !slices.Contains(codes, code): // another code: somebody has looked it up
		s.t.Fail("hostile-id-accepted", "%s: status %d, code %q", what, a.Status, code)
	case err != nil:
		s.t.Fail("code-differs", "%s: status %d, code %q (%v)", what, a.Status, code, err)
	default:
		s.t.Witness("hostile", 1)
	}
}

func (s *smuggler) send(ctx context.Context, req target.RawRequest) (wire.Answer, error) {
	q, err := wire.Sign(ctx, s.t.Target().Authority, req)
	if err != nil {
		return wire.Answer{}, err
	}
	return wire.Send(ctx, s.t.Target().Authority.Dial, q)
}

func (s *smuggler) hostile(ctx context.Context, token string) error {
	list := hostileIDs(token)
	s.t.NeedWitness("hostile", int64(len(list)*6))
	for _, id := range list {
		name := fmt.Sprintf("%.60q", strings.ReplaceAll(id, token, "TOKEN"))
		for _, member := range []string{"workspaceId", "sessionId", "clientLeaseId"} {
			if err := s.create(ctx, member, id, member+" "+name); err != nil {
				return err
			}
		}
		invocation := wire.Exec(s.mine, id, "true")
		sandbox := target.RawRequest{Op: "get", Method: "GET", Target: "/v1/sandboxes/" + url.PathEscape(id), WorkspaceID: s.mine.WorkspaceID(), SandboxID: id}
		purge := target.RawRequest{Op: "purge", Method: "DELETE", Target: "/v1/workspaces/" + url.PathEscape(id), WorkspaceID: id}
		for _, req := range []target.RawRequest{invocation, sandbox, purge} {
			a, err := s.send(ctx, req)
			if err != nil {
				return fmt.Errorf("%s with %s: %w", req.Op, name, err)
			}
			s.refused(req.Op+" with "+name, a, wire.RequestInvalid, wire.Unauthenticated)
		}
	}
	return nil
}

// create asks for a sandbox with one hostile member, over a workspace that is recorded where its id
// is a good one; a sandbox that comes of it is disposed at once.
func (s *smuggler) create(ctx context.Context, member, id, what string) error {
	if s.accepted {
		return nil
	}
	workspace := s.spare
	body, err := s.t.Target().Wire.CreateBody(ctx, s.t.Spec(target.Spec{WorkspaceID: workspace}))
	if err != nil {
		return err
	}
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &members); err != nil {
		return err
	}
	if members[member], err = json.Marshal(id); err != nil {
		return err
	}
	if body, err = json.Marshal(members); err != nil {
		return err
	}
	if member == "workspaceId" {
		workspace = id
	}
	a, err := s.send(ctx, target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: workspace, Body: body})
	if err != nil {
		return fmt.Errorf("create with %s: %w", what, err)
	}
	s.refused("create with "+what, a, wire.RequestInvalid, wire.Unauthenticated)
	if a.Status == 201 {
		s.accepted = true
		return attack.DisposeRaw(ctx, s.t, workspace, a.Body)
	}
	return nil
}

// foreign asks for the other tenant's sandbox and workspace.
func (s *smuggler) foreign(ctx context.Context) error {
	body, err := s.t.Target().Wire.CreateBody(ctx, s.t.Spec(target.Spec{WorkspaceID: s.sb.WorkspaceID()}))
	if err != nil {
		return err
	}
	mine := s.mine.WorkspaceID()
	foreign := func(req target.RawRequest) target.RawRequest { // signed for me, about their sandbox
		req.WorkspaceID = mine
		return req
	}
	beside := func(req target.RawRequest) target.RawRequest { // signed for my sandbox, sent to theirs
		req.WorkspaceID, req.SandboxID = mine, s.mine.ID()
		return req
	}
	purge := target.RawRequest{Op: "purge", Method: "DELETE", Target: "/v1/workspaces/" + s.sb.WorkspaceID(), WorkspaceID: mine}
	create := target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: mine, Body: body}
	type ask struct {
		what string
		req  target.RawRequest
		code string
	}
	list := []ask{{"a purge of their workspace", purge, wire.WorkspaceRequired}, {"a create over their workspace", create, wire.WorkspaceRequired}}
	for _, req := range []target.RawRequest{
		wire.On(s.sb, "get", "GET", "", nil), wire.Exec(s.sb, "pt06", "true"), wire.FS(s.sb, "stat", "pt06-file"), wire.File(s.sb, "pt06-file"),
		wire.Write(s.sb, "pt06-file", []byte("mine")), wire.FS(s.sb, "remove", "pt06-file"),
		wire.On(s.sb, "cancel", "DELETE", "/exec/pt06", nil), wire.On(s.sb, "renew", "POST", "/renew", nil), wire.On(s.sb, "events", "GET", "/events", nil), wire.On(s.sb, "dispose", "DELETE", "", nil),
	} {
		list = append(list, ask{req.Op, foreign(req), wire.WorkspaceMismatch}, ask{req.Op + ", signed for another sandbox", beside(req), wire.Unauthenticated})
	}
	s.t.NeedWitness("foreign", int64(len(list)))
	for _, f := range list {
		// Events that somebody is served have no end: their status is all that is waited for.
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		a, err := s.send(short, f.req)
		cancel()
		if err != nil && a.Status == 0 {
			return fmt.Errorf("%s: %w", f.what, err)
		}
		if code, err := wire.Refusal(a); err != nil || code != f.code {
			s.t.Fail("foreign-sandbox-served", "%s: status %d, code %q (%v)", f.what, a.Status, code, err)
			continue
		}
		s.t.Witness("foreign", 1)
	}
	return nil
}

// spellings ask for the own sandbox by targets that are not its target, though software in between
// may read them so; each is signed as it is sent.
func (s *smuggler) spellings(ctx context.Context) error {
	id := s.mine.ID()
	list := []string{
		fmt.Sprintf("/v1/sandboxes/%%%02x%s", id[0], id[1:]), fmt.Sprintf("/v1/sandboxes/%%%02X%s", id[0], id[1:]), "/v1/%73andboxes/" + id, "/v1/sandboxes%2f" + id,
		"/v1/sandboxes//" + id, "//v1/sandboxes/" + id, "/v1/sandboxes/./" + id, "/v1/sandboxes/x/../" + id, "/v1/sandboxes/" + s.sb.ID() + "/../" + id, "/v1/sandboxes/%2e%2e/sandboxes/" + id,
		"/v1/sandboxes/" + id + "/", "/v1/sandboxes/" + id + "/.", "/v1/sandboxes/" + id + "%00", "/v1/sandboxes/" + id + "%20", "/v1/sandboxes/" + id + ";x", "/v1/sandboxes/" + id + "?", "/v1/sandboxes/" + id + "?x=1",
		"/v1/sandboxes/" + strings.ToUpper(id), "/V1/sandboxes/" + id, "/v1/Sandboxes/" + id, "/v2/sandboxes/" + id, "http://worker/v1/sandboxes/" + id, "http://other@worker/v1/sandboxes/" + id,
	}
	s.t.NeedWitness("spellings", int64(len(list)))
	for _, to := range list {
		req := wire.On(s.mine, "get", "GET", "", nil)
		req.Target = to
		a, err := s.send(ctx, req)
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		if code, err := wire.Refusal(a); err != nil || code != wire.RequestInvalid && code != wire.Unauthenticated && code != wire.NotFound {
			s.t.Fail("spelling-accepted", "%s: status %d, code %q (%v)", to, a.Status, code, err)
			continue
		}
		s.t.Witness("spellings", 1)
	}
	a, err := s.send(ctx, wire.On(s.mine, "get", "GET", "", nil))
	if err != nil || a.Status != 200 {
		return fmt.Errorf("the sandbox under its own target: status %d, %w", a.Status, err)
	}
	return nil
}

// folder searches names below the folder of the worker's log, where a launched worker has its
// state and workspaces too, and the contents of logs and state.
func (s *smuggler) folder(token string) error {
	logs, err := s.t.Target().Observer.Logs()
	if errors.Is(err, target.ErrUnavailable) || err == nil && len(logs) == 0 {
		s.t.Observe("folder", "not known")
		return nil
	}
	if err != nil {
		return err
	}
	root := filepath.Dir(logs[0])
	files := 0
	err = filepath.WalkDir(root, func(path string, d iofs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, iofs.ErrNotExist) {
				return nil
			}
			return err
		}
		files++
		if strings.Contains(filepath.Base(path), token) {
			s.t.Fail("id-in-path", "a hostile id is a name in the worker's folder: %.200q", strings.TrimPrefix(path, root))
		}
		below := strings.TrimPrefix(path, root+"/")
		if !d.Type().IsRegular() || strings.HasPrefix(below, "workspaces/images/") || strings.HasPrefix(below, "workspaces/mnt/") {
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(token)) {
			reason := "id-recorded"
			if slices.Contains(logs, path) {
				reason = "id-in-log"
			}
			s.t.Fail(reason, "a hostile id is in %.100q", below)
		}
		return nil
	})
	s.t.Observe("files-searched", files)
	return err
}
