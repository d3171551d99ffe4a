// SPDX-License-Identifier: Apache-2.0

package evidencecmd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The commands of EVIDENCE.md for changing keys do what it says. The one that runs the suite is
// replaced by synthetic evidence, signed with the same key.
func TestKeysChangeAsTheDocumentSays(t *testing.T) {
	text, err := os.ReadFile("../../../../EVIDENCE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n### Changing keys\n")
	_, rest, opened := strings.Cut(rest, "\n```sh\n")
	walk, _, closed := strings.Cut(rest, "\n```\n")
	if !found || !opened || !closed {
		t.Fatal("EVIDENCE.md does not show how keys change")
	}
	suite := regexp.MustCompile(`(?m)^bin/hallmark run --key (\S+) .*--out (\S+)$`)
	if n := len(suite.FindAllString(walk, -1)); n != 1 {
		t.Fatalf("the suite is run %d times", n)
	}
	walk = strings.ReplaceAll(suite.ReplaceAllString(walk, "world $2/bundle $1"), "bin/hallmark", "hallmark")
	script := "exec sh -c 'umask 077; od -An -tx1 -N16 /dev/urandom > secret'\n" +
		"env HALLMARK_PASSPHRASE_FILE=$WORK/secret\n" +
		"exec hallmark trust init --dir trust --identity ci.example\n" +
		"exec world run-1/bundle trust/evidence.key\n" +
		"exec hallmark gate --trust trust/trust.json --bundle run-1/bundle\n" +
		"exec sh -eu walk.sh\n" +
		"stdout -count=6 '^admitted for cohort'\n" +
		"stdout -count=1 '^denied: key-revoked'\n" +
		"stdout -count=1 '^that was denied$'\n" +
		"-- walk.sh --\n" + walk + "\n"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "walk.txtar"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: dir})
}
