// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

func goodConfig(t *testing.T) Config {
	pub := key(t).Public().(ed25519.PublicKey)
	return Config{
		WorkerID: "w", Mode: api.Qualification, Listen: "/run/w.sock", StateDir: "/var/lib/w",
		Engine:        Engine{Socket: "/run/docker.sock", Runtime: "runsc", CgroupParent: "/hallmark"},
		Helpers:       Helpers{Supervisor: "/opt/s", Quota: "/opt/q"},
		SandboxBinary: SandboxBinary{Path: "/opt/runsc", Digest: hexOf("a")},
		Workspaces:    Workspaces{Dir: "/var/lib/ws"},
		Authority:     Authority{Issuer: "control", Keys: []AuthorityKey{{KID: "k1", PublicKey: pub}}},
		SigningKey:    "/etc/key.pem", Ceilings: ceilings,
		Candidates: &Candidates{Images: []Candidate{{ConfigDigest: hexOf("b"), ManifestDigest: hexOf("c")}}, CohortID: hexOf("d")},
	}
}

// load writes c as edited by replace and loads it.
func load(t *testing.T, c Config, replace ...string) (Config, error) {
	t.Helper()
	b, err := strictjson.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for i := 0; i+1 < len(replace); i += 2 {
		next := strings.Replace(text, replace[i], replace[i+1], 1)
		if next == text {
			t.Fatalf("%q is not in the configuration", replace[i])
		}
		text = next
	}
	path := filepath.Join(t.TempDir(), "worker.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadConfig(path)
}

func TestLoadConfig(t *testing.T) {
	got, err := load(t, goodConfig(t))
	if err != nil || got.WorkerID != "w" || len(got.VerifierKeys()) != 1 {
		t.Fatalf("the good configuration: %v", err)
	}
	for name, tt := range map[string]struct {
		alter   func(*Config)
		replace []string
		says    string
	}{
		"unknown member":       {nil, []string{`{"workerId"`, `{"debug":true,"workerId"`}, "debug"},
		"case variant":         {nil, []string{`"workerId"`, `"workerID"`}, "decode"},
		"missing member":       {nil, []string{`"signingKey":"/etc/key.pem",`, ``}, "signingKey"},
		"duplicate":            {nil, []string{`{"workerId"`, `{"workerId":"x","workerId"`}, "decode"},
		"relative path":        {func(c *Config) { c.StateDir = "state" }, nil, "stateDir"},
		"long socket path":     {func(c *Config) { c.Listen = "/" + strings.Repeat("a", 107) }, nil, "listen"},
		"unknown mode":         {func(c *Config) { c.Mode = "test" }, nil, "mode"},
		"no candidates":        {func(c *Config) { c.Candidates = nil }, nil, "candidates"},
		"production with them": {func(c *Config) { c.Mode = api.Production }, nil, "candidates belong"},
		"both": {func(c *Config) {
			c.Admission = &Admission{Root: "/r", Trust: "/t", Pins: "/p", Bundles: []string{"/b"}, StateDir: "/s"}
		}, nil, "admission belongs"},
		"no bundles": {func(c *Config) {
			c.Mode, c.Candidates = api.Production, nil
			c.Admission = &Admission{Root: "/r", Trust: "/t", Pins: "/p", StateDir: "/s"}
		}, nil, "bundles is empty"},
		"no image":       {func(c *Config) { c.Candidates.Images = nil }, nil, "images is empty"},
		"tag":            {func(c *Config) { c.Candidates.Images[0].ConfigDigest = "busybox:latest" }, nil, "by digests"},
		"cohort name":    {func(c *Config) { c.Candidates.CohortID = "prod" }, nil, "cohortId"},
		"no keys":        {func(c *Config) { c.Authority.Keys = nil }, nil, "0 keys"},
		"short key":      {func(c *Config) { c.Authority.Keys[0].PublicKey = []byte("x") }, nil, "malformed key"},
		"no ceiling":     {func(c *Config) { c.Ceilings.PIDs = 0 }, nil, "pids"},
		"engine default": {func(c *Config) { c.Engine.Runtime = "" }, nil, "engine.runtime"},
		"shared cgroup":  {func(c *Config) { c.Engine.CgroupParent = "" }, nil, "cgroupParent"},
		"few nonces":     {func(c *Config) { c.Limits = &Limits{Nonces: 999} }, nil, "limits.nonces is 999, not within 1000 to 1000000"},
		"large share":    {func(c *Config) { c.Limits = &Limits{NoncesPerWorkspace: 100_001} }, nil, "could use all"},
		"connections":    {func(c *Config) { c.Limits = &Limits{Connections: 4097} }, nil, "limits.connections"},
		"creates":        {func(c *Config) { c.Limits = &Limits{Creates: -1} }, nil, "limits.creates"},
		"execs":          {func(c *Config) { c.Limits = &Limits{Execs: 3} }, nil, "above limits.execs"},
		"per sandbox":    {func(c *Config) { c.Limits = &Limits{ExecsPerSandbox: 9} }, nil, "limits.execsPerSandbox"},
		"metrics abroad": {func(c *Config) { c.Metrics = &Metrics{Listen: "0.0.0.0:9464"} }, nil, "metrics.listen"},
		"metrics name":   {func(c *Config) { c.Metrics = &Metrics{Listen: "localhost:9464"} }, nil, "metrics.listen"},
		"metrics port":   {func(c *Config) { c.Metrics = &Metrics{Listen: "127.0.0.1:0"} }, nil, "metrics.listen"},
		"metrics on API": {func(c *Config) { c.Metrics = &Metrics{Listen: "/run/../run/w.sock"} }, nil, "listener of the API"},
		"quota on btrfs": {func(c *Config) { c.Workspaces.ProjectQuota = &ProjectQuota{"btrfs", 1 << 20, 1 << 21} }, nil, "workspaces.projectQuota.filesystem is neither"},
		"the engine's":   {func(c *Config) { c.Workspaces.ProjectQuota = &ProjectQuota{"xfs", 1, 1 << 21} }, nil, "not a range within 1048576"},
		"no id at all":   {func(c *Config) { c.Workspaces.ProjectQuota = &ProjectQuota{"xfs", 1<<20 + 1, 1 << 20} }, nil, "not a range"},
		"the last id":    {func(c *Config) { c.Workspaces.ProjectQuota = &ProjectQuota{"ext4", 1 << 20, 1<<32 - 1} }, nil, "not a range"},
		"too many files": {func(c *Config) {
			c.Workspaces.ProjectQuota, c.Ceilings.WorkspaceInodes = &ProjectQuota{"xfs", 1 << 20, 1 << 21}, 1<<22
		}, nil, "ceilings.workspaceInodes"},
		"no binary": {func(c *Config) { c.SandboxBinary.Digest = "" }, nil, "sandboxBinary.digest"},
	} {
		t.Run(name, func(t *testing.T) {
			c := goodConfig(t)
			if tt.alter != nil {
				tt.alter(&c)
			}
			_, err := load(t, c, tt.replace...)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
	t.Run("all problems at once", func(t *testing.T) {
		_, err := load(t, Config{})
		if err == nil || strings.Count(err.Error(), "\n") < 10 {
			t.Errorf("got %v", err)
		}
	})
}

// TestSecurityDocument: the same in both modes and places, another with other bounds.
func TestSecurityDocument(t *testing.T) {
	a, b := goodConfig(t), goodConfig(t)
	b.WorkerID, b.Mode, b.StateDir, b.Candidates, b.Workspaces.ReserveBytes = "other", api.Production, "/elsewhere", nil, 1<<30
	da, errA := a.SecurityDocument()
	db, errB := b.SecurityDocument()
	if errA != nil || errB != nil || !bytes.Equal(da, db) {
		t.Errorf("%s %v\n%s %v", da, errA, db, errB)
	}
	b.Ceilings.MemoryBytes++
	if dc, err := b.SecurityDocument(); err != nil || bytes.Equal(da, dc) {
		t.Errorf("other ceilings, same document: %v", err)
	}
}

// Evidence about one quota backend admits no other.
func TestQuotaShowsInTheSecurityDocument(t *testing.T) {
	seen := map[string]string{}
	for name, q := range map[string]*ProjectQuota{"loop": nil, "xfs": {"xfs", 1 << 20, 1 << 21}, "ext4": {"ext4", 1 << 20, 1 << 21}} {
		c := goodConfig(t)
		c.Workspaces.ProjectQuota = q
		got, err := load(t, c)
		if err != nil {
			t.Fatal(name, err)
		}
		doc, err := got.SecurityDocument()
		if other := seen[string(doc)]; err != nil || other != "" {
			t.Errorf("%s has the document of %q: %v", name, other, err)
		}
		seen[string(doc)] = name
		if q != nil {
			c.Workspaces.ProjectQuota = &ProjectQuota{q.Filesystem, 1<<20 + 7, 1 << 22}
			if again, err := c.SecurityDocument(); err != nil || !bytes.Equal(doc, again) {
				t.Errorf("%s: which ids they are is in it: %v", name, err)
			}
		}
	}
}

// What is moved is what is reported, and what evidence is about.
func TestLimits(t *testing.T) {
	a, b := goodConfig(t), goodConfig(t)
	b.Limits = &Limits{}
	da, errA := a.SecurityDocument()
	db, errB := b.SecurityDocument()
	if errA != nil || errB != nil || !bytes.Equal(da, db) || a.EffectiveLimits() != DefaultLimits(a.Ceilings) {
		t.Errorf("limits that move nothing: %s %v\n%s %v", da, errA, db, errB)
	}
	for i, move := range []func(*Limits){
		func(l *Limits) { l.Nonces = 50_000 }, func(l *Limits) { l.NoncesPerWorkspace = 500 }, func(l *Limits) { l.Connections = 9 },
		func(l *Limits) { l.Creates = 2 }, func(l *Limits) { l.Execs = 65 }, func(l *Limits) { l.ExecsPerSandbox = 8 },
	} {
		b.Limits = &Limits{}
		move(b.Limits)
		got, err := load(t, b)
		if err != nil || got.EffectiveLimits() == DefaultLimits(b.Ceilings) {
			t.Errorf("move %d: %+v, %v", i, got.EffectiveLimits(), err)
		}
		if db, errB = got.SecurityDocument(); errB != nil || bytes.Equal(da, db) {
			t.Errorf("move %d does not show in the security document: %v", i, errB)
		}
	}
	for _, listen := range []string{"127.0.0.1:9464", "[::1]:1", "/run/hallmark/metrics.sock"} {
		a.Metrics = &Metrics{Listen: listen}
		if _, err := load(t, a); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
}

func TestInstallHelper(t *testing.T) {
	dir, source := filepath.Join(t.TempDir(), "helpers"), filepath.Join(t.TempDir(), "tool")
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(source, "one", 0o755)
	first, err := InstallHelper(dir, source)
	if err != nil || first.Digest != api.Digest([]byte("one")) {
		t.Fatalf("%+v, %v", first, err)
	}
	write(source, "two", 0o755)
	second, err := InstallHelper(dir, source)
	if err != nil || second.Path == first.Path {
		t.Fatalf("%+v, %v", second, err)
	}
	st, err := os.Stat(second.Path)
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, ".new-1"), "half a cop", 0o600) // of a start that was cut off
	if again, err := InstallHelper(dir, source); err != nil || again != second {
		t.Errorf("%+v, %v", again, err)
	}
	if now, err := os.Stat(second.Path); err != nil || !os.SameFile(st, now) {
		t.Errorf("a copy that holds was made again: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if err := first.Verify(); err != nil {
		t.Errorf("the first copy followed its source: %v", err)
	}
	for name, spoil := range map[string]func(){
		"other bytes": func() { write(second.Path, "three", 0o555) },
		"writable":    func() { write(second.Path, "two", 0o755) },
		"gone":        func() { write(second.Path, "two", 0o555); _ = os.Remove(second.Path) },
		"symlink":     func() { _ = os.Remove(second.Path); _ = os.Symlink(source, second.Path) },
	} {
		t.Run(name, func(t *testing.T) {
			spoil()
			if second.Verify() == nil {
				t.Error("a spoilt copy was accepted")
			}
			if again, err := InstallHelper(dir, source); err != nil || again != second || again.Verify() != nil {
				t.Errorf("not repaired: %+v, %v", again, err)
			}
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if _, err := InstallHelper(dir, source+"-absent"); err == nil {
		t.Error("an absent helper was installed")
	}
}

func TestOwnDigest(t *testing.T) {
	got, err := OwnDigest()
	if err != nil {
		t.Fatal(err)
	}
	if want, err := FileDigest(os.Args[0]); err != nil || got != want {
		t.Errorf("%s, %s, %v", got, want, err)
	}
}
