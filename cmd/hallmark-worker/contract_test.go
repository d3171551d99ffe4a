// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/api/wiretest"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// TestContractOnRunsc holds every exchange with the worker's binary, on real sandboxes, against the
// OpenAPI document: each operation to success, and what it refuses on the way.
func TestContractOnRunsc(t *testing.T) {
	s := newSite(t)
	contract, err := wiretest.Load()
	if err != nil {
		t.Fatal(err)
	}
	var seen *wiretest.Transport
	cfg := s.caller
	cfg.Wrap = func(next http.RoundTripper) http.RoundTripper {
		seen = contract.Transport(t, next)
		return seen
	}
	p := s.start() // asks health until the worker answers, which is no part of this
	if s.client, err = client.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, c := t.Context(), s.client
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err = c.Raw(ctx, client.RawRequest{Method: http.MethodGet, Target: "/healthz", NoToken: true})
	must("healthz", err)
	_, err = c.Health(ctx)
	must("health", err)
	sb := s.create("ws").SandboxID
	_, err = c.Get(ctx, "ws", sb)
	must("get", err)
	events, err := c.Events(ctx, "ws", sb)
	must("events", err)
	_, err = c.Write(ctx, "ws", sb, "run.sh", []byte("#!/bin/sh\ncat\necho to stderr >&2\nkill -9 $$\n"), client.WriteOptions{Executable: true})
	must("write", err)
	run := func(id string, argv ...string) api.ExecRequest {
		return api.ExecRequest{InvocationID: id, Argv: argv, Stdin: []byte("in"), TimeoutMs: 20_000, MaxOutputBytes: 1000}
	}
	res, err := c.Exec(ctx, "ws", sb, run("i1", "./run.sh"))
	if must("exec", err); res.Signal != "SIGKILL" || string(res.Stdout) != "in" {
		t.Errorf("exec: %+v", res)
	}
	var out, errs bytes.Buffer
	each := func(e api.ExecEvent) error {
		switch e.Type {
		case api.ExecStdout:
			out.Write(e.Data)
		case api.ExecStderr:
			errs.Write(e.Data)
		}
		return nil
	}
	_, err = c.ExecStream(ctx, "ws", sb, run("i2", "./run.sh"), each)
	if must("streamed exec", err); out.String() != "in" || errs.String() != "to stderr\n" {
		t.Errorf("stream gave %q and %q", &out, &errs)
	}
	_, err = c.Exec(ctx, "ws", sb, run("i1", "./run.sh"))
	must("repeated exec", err)
	_, err = c.ExecStream(ctx, "ws", sb, run("i2", "./run.sh"), each)
	must("repeated stream", err)
	_, err = c.Exec(ctx, "ws", sb, run("i1", "true"))
	codeIs(t, err, api.IdempotencyConflict)
	started := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := c.ExecStream(ctx, "ws", sb, run("i3", "sleep", "60"), func(e api.ExecEvent) error {
			if e.Type == api.ExecStarted {
				close(started)
			}
			return nil
		})
		ended <- err
	}()
	select {
	case <-started:
	case err := <-ended:
		t.Fatalf("the command to cancel did not start: %v", err)
	}
	_, err = c.Exec(ctx, "ws", sb, run("i3", "sleep", "60"))
	codeIs(t, err, api.ExecInProgress)
	_, err = c.Cancel(ctx, "ws", sb, "i3")
	codeIs(t, err, api.ExecAborted)
	codeIs(t, <-ended, api.ExecAborted)
	_, err = c.Cancel(ctx, "ws", sb, "never")
	codeIs(t, err, api.OutcomeUnknown)
	_, err = c.Renew(ctx, "ws", sb)
	must("renew", err)
	for _, op := range []api.FSRequest{
		{Op: api.FSMkdir, Path: "d"}, {Op: api.FSStat, Path: "run.sh"}, {Op: api.FSStat}, {Op: api.FSRename, Path: "run.sh", ToBytes: []byte("odd\xff")},
		{Op: api.FSList, LimitedRows: 1}, {Op: api.FSList}, {Op: api.FSRemove, Path: "d"},
	} {
		_, err := c.FS(ctx, "ws", sb, op)
		must(op.Op, err)
	}
	_, err = c.Exec(ctx, "ws", sb, run("i4", "ln", "-s", "/etc/passwd", "link"))
	must("link", err)
	_, err = c.FS(ctx, "ws", sb, api.FSRequest{Op: api.FSReadlink, Path: "link"})
	must("readlink", err)
	_, err = c.Read(ctx, "ws", sb, "link")
	codeIs(t, err, api.PathUnsafe)
	_, err = c.Read(ctx, "ws", sb, "odd\xff")
	must("read", err)
	_, err = c.Write(ctx, "ws", sb, "big", bytes.Repeat([]byte("x"), 17<<20), client.WriteOptions{})
	codeIs(t, err, api.QuotaExceeded)
	codeIs(t, c.Purge(ctx, "ws"), api.IncompleteCleanup)
	_, err = c.Write(ctx, "ws", sb, "note", []byte("one"), client.WriteOptions{})
	must("write", err)
	_, err = c.Write(ctx, "ws", sb, "note", []byte("two"), client.WriteOptions{Append: true, ExpectedSize: 3})
	must("append", err)
	_, err = c.Write(ctx, "ws", sb, "note", []byte("two"), client.WriteOptions{Append: true, ExpectedSize: 3})
	codeIs(t, err, api.IdempotencyConflict)
	told := make(chan error, 1)
	go func() {
		var last error
		for _, err := range events.All() {
			last = err
		}
		told <- last
	}()
	must("dispose", c.Dispose(ctx, "ws", sb))
	codeIs(t, <-told, api.SandboxDisposed)
	_, err = c.Get(ctx, "ws", sb)
	must("get of a sandbox that is gone", err)
	_, err = c.Renew(ctx, "ws", sb)
	codeIs(t, err, api.SandboxDisposed)
	must("purge", c.Purge(ctx, "ws"))
	s.stop(p)
	all := seen.Seen()
	// A client of events leaves at the end event and may not see the end of the body.
	for _, want := range strings.Fields("healthz:204 health:200 create:201 get:200 exec:200 cancel:200 fs:200 read:200 write:200 events:event:end renew:200 dispose:204 purge:204") {
		if all[strings.ReplaceAll(want, ":", " ")] == 0 {
			t.Errorf("%s was not seen", want)
		}
	}
	t.Logf("%d kinds of answers held against the contract", len(all))
}

// TestExampleSession runs the program of docs/worker-api.md on a real sandbox: it prints what the
// page says that it prints.
func TestExampleSession(t *testing.T) {
	s := newSite(t)
	p := s.start()
	der, err := x509.MarshalPKCS8PrivateKey(s.caller.Key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key, program := filepath.Join(dir, "capability.pem"), filepath.Join(dir, "session")
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, "./examples/session")
	build.Dir = repo
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	text, err := exec.Command(program, "-socket", s.caller.Socket, "-worker", s.caller.WorkerID, "-worker-key", base64.StdEncoding.EncodeToString(s.caller.WorkerKey),
		"-issuer", s.caller.Issuer, "-kid", s.caller.KeyID, "-key", key, "-image", s.image.ConfigDigest, "-allow-qualification").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	page, err := os.ReadFile(filepath.Join(repo, "docs/worker-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```output\n")
	want, _, _ := strings.Cut(rest, "```")
	if got := string(text); got != want {
		t.Errorf("the program printed\n%s\nthe page says\n%s", got, want)
	}
	s.stop(p)
}
