// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path/filepath"
	"testing"
)

// The profile and the configuration of every process's target are the same; a process none of
// whose cases started anything has no profile.
func TestDocumentsOfEveryProcessAreTheSame(t *testing.T) {
	for name, tt := range map[string]struct {
		second map[string]string
		same   bool
	}{
		"the same":              {map[string]string{launchProfileDocument: "a", workerConfigDocument: "b"}, true},
		"nothing was started":   {map[string]string{workerConfigDocument: "b"}, true},
		"another profile":       {map[string]string{launchProfileDocument: "x", workerConfigDocument: "b"}, false},
		"another configuration": {map[string]string{workerConfigDocument: "x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &child{plan: plan{Raw: t.TempDir()}, peers: &peers{total: 2}}
			dir := filepath.Join(c.plan.Raw, documentsDir)
			files := map[string]string{launchProfileDocument: "a", workerConfigDocument: "b"}
			for n, body := range tt.second {
				files[documentName(2, n)] = body
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for n, body := range files {
				if err := os.WriteFile(filepath.Join(dir, n), []byte(body), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.sameDocuments(); (err == nil) != tt.same {
				t.Error(err)
			}
		})
	}
}
