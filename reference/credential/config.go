// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Config is the member credentials of the worker's configuration: what this worker trusts. It
// holds no value.
type Config struct {
	Providers []ProviderConfig `json:"providers"`
	Bindings  []Binding        `json:"bindings"`
}

// Kinds of [ProviderConfig].
const (
	KindFile = "file"
	KindExec = "exec"
)

// ProviderConfig is one provider: Dir for kind file, Argv and TimeoutMs for kind exec.
type ProviderConfig struct {
	ProviderID string   `json:"providerId"`
	Kind       string   `json:"kind"`
	Dir        string   `json:"dir,omitempty"`       // absolute; this user's, mode 0700
	Argv       []string `json:"argv,omitempty"`      // argv[0] absolute; nothing is added to it
	TimeoutMs  int64    `json:"timeoutMs,omitempty"` // 1 .. 30,000
}

// Binding says which fields a provider may give to whom.
type Binding struct {
	BindingID  string `json:"bindingId"`
	ProviderID string `json:"providerId"`
	// Category and Kind say what is behind the binding. Those of a model provider are in the sets
	// so that a shared configuration can name them; they are never delivered.
	Category string   `json:"category"`
	Kind     string   `json:"kind"`
	Fields   []string `json:"fields"` // 1 .. 16 field ids
	// Workspaces narrows the binding; absent means every workspace of this worker, each of which
	// the payload's own scope still has to name.
	Workspaces []string `json:"workspaces,omitempty"`
}

// The closed sets of what a binding can be.
var (
	categories = []string{"database", "identity", "registry", "service", "source", "storage", "model-provider"}
	kinds      = []string{"certificate", "key", "password", "token", "model-api-key"}
)

// modelProvider reports whether b leads to a model provider: a key to it would let a tenant act, and
// spend, as the operator. Such traffic belongs behind a proxy of the operator's.
func (b Binding) modelProvider() bool {
	return b.Category == "model-provider" || b.Kind == "model-api-key"
}

const (
	maxProviders   = 64
	maxBindings    = 1024
	maxWorkspaces  = 1024
	maxArgs        = 64
	maxProviderMs  = 30_000
	providerBudget = maxProviderMs * time.Millisecond // of any provider's call
)

// Validate returns all problems, joined. It looks at nothing outside c.
func (c Config) Validate() error {
	var bad []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf("credentials: "+format, args...))
		}
	}
	need(len(c.Providers) >= 1 && len(c.Providers) <= maxProviders, "%d providers, 1 to %d are needed", len(c.Providers), maxProviders)
	need(len(c.Bindings) >= 1 && len(c.Bindings) <= maxBindings, "%d bindings, 1 to %d are needed", len(c.Bindings), maxBindings)
	providers := map[string]bool{}
	for _, p := range c.Providers {
		need(api.ValidID(p.ProviderID) && !providers[p.ProviderID], "a providerId is no identifier, or is there twice")
		providers[p.ProviderID] = true
		switch p.Kind {
		case KindFile:
			need(filepath.IsAbs(p.Dir) && p.Argv == nil && p.TimeoutMs == 0, "provider %s of kind file has an absolute dir and nothing else", p.ProviderID)
		case KindExec:
			need(p.Dir == "" && len(p.Argv) >= 1 && len(p.Argv) <= maxArgs && filepath.IsAbs(p.Argv[0]), "provider %s of kind exec has an argv that begins with an absolute path", p.ProviderID)
			need(p.TimeoutMs >= 1 && p.TimeoutMs <= maxProviderMs, "provider %s has a timeoutMs of 1 to %d", p.ProviderID, maxProviderMs)
		default:
			need(false, "provider %s is neither of kind file nor exec", p.ProviderID)
		}
	}
	bindings := map[string]bool{}
	for _, b := range c.Bindings {
		need(api.ValidID(b.BindingID) && !bindings[b.BindingID], "a bindingId is no identifier, or is there twice")
		bindings[b.BindingID] = true
		need(providers[b.ProviderID], "binding %s names a provider that is not there", b.BindingID)
		need(slices.Contains(categories, b.Category), "binding %s has a category outside %q", b.BindingID, categories)
		need(slices.Contains(kinds, b.Kind), "binding %s has a kind outside %q", b.BindingID, kinds)
		need(len(b.Fields) >= 1 && len(b.Fields) <= MaxFields && distinctIDs(b.Fields), "binding %s has 1 to %d different field ids", b.BindingID, MaxFields)
		need(b.Workspaces == nil || len(b.Workspaces) >= 1 && len(b.Workspaces) <= maxWorkspaces && distinctIDs(b.Workspaces),
			"binding %s has 1 to %d different workspaces, or no such member", b.BindingID, maxWorkspaces)
	}
	return errors.Join(bad...)
}

func distinctIDs(ids []string) bool {
	seen := map[string]bool{}
	for _, id := range ids {
		if !api.ValidID(id) || seen[id] {
			return false
		}
		seen[id] = true
	}
	return true
}

// Open opens the providers of c by their ids. On an error none stays open.
func (c Config) Open() (map[string]Provider, error) {
	out := map[string]Provider{}
	for _, p := range c.Providers {
		var made Provider
		var err error
		switch p.Kind {
		case KindFile:
			made, err = OpenFile(p.Dir)
		case KindExec:
			made, err = NewExec(p.Argv, time.Duration(p.TimeoutMs)*time.Millisecond)
		default:
			err = fmt.Errorf("kind %q", p.Kind)
		}
		if err != nil {
			for _, open := range out {
				if f, ok := open.(*File); ok {
					f.Close()
				}
			}
			return nil, fmt.Errorf("open provider %s: %w", p.ProviderID, err)
		}
		out[p.ProviderID] = made
	}
	return out, nil
}
