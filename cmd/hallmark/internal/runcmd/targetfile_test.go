// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
	"github.com/hallmark-sandbox/hallmark/conformance/target/execdriver"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// docs/targets.md shows one target file for each driver of this program, as that driver reads it.
func TestTargetsDocumentHasAFileForEachDriver(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(repo, "docs", "targets.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]int{}
	for i, block := range strings.Split(string(text), "```json\n") {
		if i == 0 {
			continue
		}
		body, _, closed := strings.Cut(block, "```")
		path := filepath.Join(t.TempDir(), "target.json")
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil || !closed {
			t.Fatal(err, closed)
		}
		f, err := ReadTargetFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		shown[f.Driver]++
		config := map[string]any{driverAPI: &api.Config{}, driverDocker: &docker.Config{}, driverExec: &execdriver.Config{}}[f.Driver]
		if err := strictjson.Unmarshal(f.Config, config, strictjson.Default); err != nil {
			t.Errorf("%s: %v", f.Driver, err)
		}
	}
	for driver := range Drivers() {
		if shown[driver] != 1 {
			t.Errorf("docs/targets.md shows %d files of the driver %s, want 1", shown[driver], driver)
		}
	}
}
