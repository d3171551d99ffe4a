// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

func TestBundleOnDiskIsTheSame(t *testing.T) {
	w := world(t)
	b, q := bundleAndQuestion(t, w)
	dir := filepath.Join(t.TempDir(), "bundle")
	if err := b.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := b.Write(dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("writing over a bundle: %v", err)
	}
	again, err := evidence.ReadBundle(dir, evidence.AuditDepth)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.Names(), b.Names()) {
		t.Errorf("read %v, wrote %v", again.Names(), b.Names())
	}
	if d := evidence.Decide(q, again); !d.Admitted {
		t.Error(d.Detail)
	}
	light, err := evidence.ReadBundle(dir, evidence.AdmitDepth)
	if err != nil || !slices.Equal(light.Names(), []string{evidence.EvidenceFile}) {
		t.Errorf("admit depth read %v (%v)", light.Names(), err)
	}
	if d := evidence.Decide(q, light); d.Admitted {
		t.Error("a bundle without its artifacts passed an audit")
	}
}

func TestReadBundleRefusesSpecialFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"fifo":    func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"symlink": func(p string) error { return os.Symlink("/etc/passwd", p) },
		"socket":  func(p string) error { return syscall.Mknod(p, syscall.S_IFSOCK|0o600, 0) },
	} {
		b, err := world(t).Bundle()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := b.Write(dir); err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(dir, "index.json")
		if err := errors.Join(os.Remove(target), make(target)); err != nil {
			t.Fatal(err)
		}
		if _, err := evidence.ReadBundle(dir, evidence.AuditDepth); evidence.ReasonOf(err) != evidence.ReasonFileKind {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := evidence.ReadBundle(filepath.Join(t.TempDir(), "none"), evidence.AuditDepth); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestUnsealedRunIsNotSigned(t *testing.T) {
	w := world(t)
	w.Statement.Predicate.Run.Seal = evidence.Seal{}
	if _, _, err := evidence.MakeBundle(w.Statement, w.Blobs, w.Evidence); err == nil {
		t.Error("a run without a seal was signed")
	}
	if _, _, err := evidence.MakeBundle(world(t).Statement, w.Blobs); err == nil {
		t.Error("a bundle without a signer was made")
	}
}

func TestNextSequence(t *testing.T) {
	key := filepath.Join(t.TempDir(), "evidence.key")
	for want := int64(1); want <= 3; want++ {
		if n, err := evidence.NextSequence(key); n != want || err != nil {
			t.Errorf("got %d (%v), want %d", n, err, want)
		}
	}
	if err := os.WriteFile(key+".seq", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := evidence.NextSequence(key); err == nil {
		t.Errorf("went on with %d after the memory was spoilt", n)
	}
}

func TestCatalogueCheck(t *testing.T) {
	for name, edit := range map[string]func(*evidence.Catalogue){
		"order":              func(c *evidence.Catalogue) { c.Cases[0], c.Cases[1] = c.Cases[1], c.Cases[0] },
		"twice":              func(c *evidence.Catalogue) { c.Cases[1] = c.Cases[0] },
		"no cases":           func(c *evidence.Catalogue) { c.Cases = nil },
		"profile of nothing": func(c *evidence.Catalogue) { c.Profiles[1].Core = nil },
		"core elsewhere":     func(c *evidence.Catalogue) { c.Profiles[1].Core = []string{"network"} },
		"revision 0":         func(c *evidence.Catalogue) { c.Cases[0].Revision = 0 },
		"features":           func(c *evidence.Catalogue) { c.Cases[3].Features = []string{"quota", "exec"} },
	} {
		c := world(t).Catalogue
		if _, err := c.Digest(); err != nil {
			t.Fatal(err)
		}
		edit(&c)
		if _, err := c.Digest(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	c := world(t).Catalogue
	c.Cases[0], c.Cases[1] = c.Cases[1], c.Cases[0]
	c.Sort()
	if err := c.Check(); err != nil {
		t.Errorf("sorted: %v", err)
	}
}
