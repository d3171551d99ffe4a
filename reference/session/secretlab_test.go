// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
)

// withProvider gives the site a file provider with one binding, and restarts it.
func (s *site) withProvider(ws, canary string) {
	s.Helper()
	dir := filepath.Join(s.dir, "payloads")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.Fatal(err)
	}
	payload, err := json.Marshal(map[string]any{
		"version": credential.PayloadVersion, "expiresAtUnixMs": time.Now().Add(time.Hour).UnixMilli(),
		"scope":  map[string]string{"workspaceId": ws, "bindingId": "b", "executionId": "session"},
		"fields": []map[string]any{{"fieldId": "token", "value": []byte(canary)}},
	})
	if err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.json"), payload, 0o600); err != nil {
		s.Fatal(err)
	}
	p, err := credential.OpenFile(dir)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { p.Close() })
	s.resolve = func() *credential.Resolver {
		r, err := credential.New(credential.Options{
			Bindings:  []credential.Binding{{BindingID: "b", ProviderID: "p", Category: "service", Kind: "token", Fields: []string{"token"}}},
			Providers: map[string]credential.Provider{"p": p}, Store: s.store,
			Now: func() (time.Time, error) { return time.Now(), nil }, Log: slog.New(slog.NewTextHandler(s.Output(), nil)),
		})
		if err != nil {
			s.Fatal(err)
		}
		return r
	}
	s.crash()
	s.boot()
}

func (s *site) container(sb string) string {
	s.Helper()
	listed, err := s.engine.List(s.Context(), s.worker)
	if err != nil {
		s.Fatal(err)
	}
	var ids []string
	for _, l := range listed {
		if l.SandboxID == sb {
			ids = append(ids, l.ID)
		}
	}
	if len(ids) != 1 {
		s.Fatalf("containers %q", ids)
	}
	return ids[0]
}

// The whole way on real runsc: what the command gets, what it cannot do, and what is left of it.
func TestSecretOnRunsc(t *testing.T) {
	s := newSite(t)
	canary := "s3cr3t-" + token()
	create := s.request()
	s.withProvider(create.WorkspaceID, canary)
	r := s.create(create)
	if out, err := s.sh(r, "echo mine >file; echo x >/tmp/earlier; ls -a /tmp | wc -l"); err != nil || len(out.Stderr) != 0 {
		t.Fatalf("%s %s %v", out.Stdout, out.Stderr, err)
	}
	first := s.container(r.SandboxID)
	req := shell(`od -An -v -tx1 <&3 | tr -d ' \n'; echo; echo $HOME; cat file; echo y >file; echo z >/tmp/left; env | grep -c .; sleep 3600 <&3 >/dev/null 2>&1 &`)
	req.CredentialRefs = []api.CredentialRef{{DeliveryAttemptID: "d1", ProviderID: "p", BindingID: "b", ExecutionID: "session",
		Fields: []api.CredentialField{{Name: "TOKEN", FieldID: "token"}}}}
	out, err := s.m.Exec(t.Context(), r.WorkspaceID, r.SandboxID, req, digest(req))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out.Stdout), "\n")
	frame := make([]byte, len(lines[0])/2)
	for i := range frame {
		hi, lo := strings.IndexByte("0123456789abcdef", lines[0][2*i]), strings.IndexByte("0123456789abcdef", lines[0][2*i+1])
		frame[i] = byte(hi<<4 | lo)
	}
	fields, err := credential.DecodeFrame(frame)
	if err != nil || len(fields) != 1 || fields[0].Name != "TOKEN" || string(fields[0].Value) != canary {
		t.Errorf("the frame is %q, %v", lines[0], err)
	}
	if lines[1] != "/tmp/home" || lines[2] != "mine" || !bytes.Contains(out.Stderr, []byte("Read-only file system")) {
		t.Errorf("stdout %q, stderr %q", lines[1:], out.Stderr)
	}
	second := s.container(r.SandboxID)
	got, err := s.sh(r, "cat file; ls /tmp; echo more >>file && cat file; echo $HOME; ps | grep -c '[s]leep 3600'")
	if err != nil || string(got.Stdout) != "mine\nmine\nmore\n/workspace\n0\n" {
		t.Errorf("afterwards: %q %q %v", got.Stdout, got.Stderr, err)
	}
	if first == second {
		t.Error("the container is the same as before")
	}
	if _, err := s.m.Exec(t.Context(), r.WorkspaceID, r.SandboxID, req, digest(req)); err == nil {
		t.Error("the invocation is repeated")
	}
	if err := s.m.Dispose(t.Context(), r.WorkspaceID, r.SandboxID); err != nil {
		t.Error(err)
	}
	if n := s.secrets.Outstanding(); n != 0 {
		t.Errorf("%d leases outstanding", n)
	}
}
