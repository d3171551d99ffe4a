// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPinnedPackageIsTheOneThatIsPinned(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.deb")
	if err := os.WriteFile(file, []byte("a package"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("a package"))
	w := pinned{digest: hex.EncodeToString(sum[:])}
	if err := w.check(file); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("a packagE"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.check(file); err == nil || !strings.Contains(err.Error(), w.digest) {
		t.Errorf("another file: %v", err)
	}
	if !strings.HasSuffix(runscDeb13.pool, "/"+runscDeb13.folder()+"_"+runscDeb13.arch+".deb") || len(runscDeb13.digest) != 64 {
		t.Errorf("the pin disagrees with itself: %+v", runscDeb13)
	}
}

// On another architecture nothing is fetched; what is there already is taken without a look outside.
func TestPinnedPackageIsOfOneArchitecture(t *testing.T) {
	p := &packages{dir: t.TempDir(), release: "debian-12/riscv64"}
	if _, err := p.getPinned(t.Context(), runscDeb13); err == nil || !strings.Contains(err.Error(), "riscv64") {
		t.Errorf("on another architecture: %v", err)
	}
	want := filepath.Join(p.dir, runscDeb13.folder())
	if err := os.Mkdir(want, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := p.getPinned(t.Context(), runscDeb13); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
}

func TestOnlyDebiansOwnArchiveIsAsked(t *testing.T) {
	got := debianOnly("Debian\tDebian\tmirror:/debian\nDebian\tDebian\tmirror:/debian/\nDebian\tDebian-Security\tmirror:/security/\n" +
		"Others\tOthers\tmirror:/others/\n\t\tmirror:/unread/\nDebian\tDebian\t\n")
	if !slices.Equal(got, []string{"mirror:/debian/"}) {
		t.Errorf("%q", got)
	}
}
