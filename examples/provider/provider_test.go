// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/credential/credentialtest"
)

// The page shows this test; a program in any language is tested the same way.
func TestProviderKeepsTheContract(t *testing.T) {
	program := filepath.Join(t.TempDir(), "provider")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	provider := func(t *testing.T, value os.FileMode) credential.Provider {
		folder := t.TempDir()
		values := filepath.Join(folder, "values", credentialtest.WorkspaceID, credentialtest.ExecutionID, credentialtest.BindingID)
		for _, dir := range []string{values, filepath.Join(folder, "leases")} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(values, credentialtest.FieldID)
		if value.IsDir() {
			path = filepath.Join(path, "not-a-value")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(path, []byte(credentialtest.Secret), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := credential.NewExec([]string{program, folder}, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	credentialtest.Run(t, credentialtest.Config{
		New:    func(t *testing.T) credential.Provider { return provider(t, 0o600) },
		Broken: func(t *testing.T) credential.Provider { return provider(t, os.ModeDir) },
	})
}

// What the page shows of the program and of the test is what is here.
func TestPageShowsTheseFiles(t *testing.T) {
	page, err := os.ReadFile("../../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	var sources string
	for _, name := range []string{"main.go", "provider_test.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources += string(b)
	}
	rest, shown := string(page), 0
	for {
		_, after, found := strings.Cut(rest, "```go\n")
		if !found {
			break
		}
		block, tail, closed := strings.Cut(after, "```")
		if !closed || !strings.Contains(sources, block) {
			t.Errorf("this block of the page is not in the example:\n%s", block)
		}
		rest, shown = tail, shown+1
	}
	if shown != 2 {
		t.Errorf("the page shows %d blocks", shown)
	}
}
