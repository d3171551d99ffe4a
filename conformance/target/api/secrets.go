// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
)

// Names that a launched worker is configured with.
const (
	secretProvider  = "suite-exec"
	secretFiles     = "suite-file"
	secretBinding   = "suite"
	secretModel     = "suite-model"
	secretElsewhere = "suite-elsewhere"
	secretTimeoutMs = 10_000
)

var secretFields = []string{"token", "user"}

// secretScript is the provider: a shell with its builtins only. It writes down each request, a line,
// before it does anything, and answers with the file of the binding. $1 is the folder.
const secretScript = `#!/bin/sh
IFS= read -r request || exit 9
printf '%s\n' "$request" >>"$1/asked"
case "$request" in *'"op":"dispose"'*) exit 0 ;; esac
binding=${request#*'"bindingId":"'}
binding=${binding%%'"'*}
if [ -f "$1/$binding.break" ]; then
	IFS= read -r text <"$1/$binding.break"
	printf '%s' "$text"
	printf '%s' "$text" >&2
	exit 1
fi
[ -f "$1/$binding.json" ] || exit 3
IFS= read -r text <"$1/$binding.json"
printf '%s' "$text"
`

// secrets is the provider of a launched worker.
type secrets struct{ dir string }

// makeSecrets makes the provider's folder and program, and returns what the worker is told.
func makeSecrets(dir string) (secrets, *credential.Config, error) {
	files := filepath.Join(dir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return secrets{}, nil, fmt.Errorf("make credential folder: %w", err)
	}
	program := filepath.Join(dir, "provider")
	if err := os.WriteFile(program, []byte(secretScript), 0o700); err != nil {
		return secrets{}, nil, fmt.Errorf("write credential provider: %w", err)
	}
	binding := func(id, category string, workspaces ...string) credential.Binding {
		return credential.Binding{BindingID: id, ProviderID: secretProvider, Category: category, Kind: "token", Fields: secretFields, Workspaces: workspaces}
	}
	return secrets{dir}, &credential.Config{
		Providers: []credential.ProviderConfig{
			{ProviderID: secretProvider, Kind: credential.KindExec, Argv: []string{program, dir}, TimeoutMs: secretTimeoutMs},
			{ProviderID: secretFiles, Kind: credential.KindFile, Dir: files},
		},
		Bindings: []credential.Binding{
			binding(secretBinding, "service"), binding(secretModel, "model-provider"), binding(secretElsewhere, "service", "no-such-workspace"),
		},
	}, nil
}

func (secrets) Names() target.SecretNames {
	return target.SecretNames{
		Provider: secretProvider, OtherProvider: secretFiles, Binding: secretBinding, ModelBinding: secretModel, OtherWorkspace: secretElsewhere,
		Fields: secretFields, PayloadVersion: credential.PayloadVersion,
	}
}

func (s secrets) Answer(binding string, body []byte) error {
	return errors.Join(s.place(binding+".break", nil), s.place(binding+".json", body))
}

func (s secrets) Break(binding string, body []byte) error { return s.place(binding+".break", body) }

// place replaces a file in one step; nil removes it.
func (s secrets) place(name string, body []byte) error {
	path := filepath.Join(s.dir, name)
	if body == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if bytes.ContainsAny(body, "\n\x00") {
		return errors.New("an answer with a line end or NUL") // a shell reads one line
	}
	if err := os.WriteFile(path+".new", append(body[:len(body):len(body)], '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (s secrets) Asked() ([]target.SecretCall, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, "asked"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []target.SecretCall
	for line := range strings.Lines(string(b)) {
		var c target.SecretCall
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			return nil, fmt.Errorf("the provider was asked %q: %w", line, err)
		}
		out = append(out, c)
	}
	return out, nil
}
