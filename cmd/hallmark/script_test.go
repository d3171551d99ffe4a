// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// TestMain gives the scripts the program itself.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hallmark": main})
}

// TestScripts types what people type. The scripts start nothing: what they ask for is refused, or
// is read from the program alone.
func TestScripts(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("REPO", repo)
			e.Setenv("HALLMARK_CACHE", e.Getenv("WORK")+"/cache")
			return os.Mkdir(e.Getenv("WORK")+"/cache", 0o755)
		},
	})
}
