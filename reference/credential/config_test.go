// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func goodConfig() Config {
	return Config{
		Providers: []ProviderConfig{{ProviderID: "f", Kind: KindFile, Dir: "/d"}, {ProviderID: "e", Kind: KindExec, Argv: []string{"/bin/true", "x"}, TimeoutMs: 1000}},
		Bindings:  []Binding{{BindingID: "b", ProviderID: "f", Category: "registry", Kind: "token", Fields: []string{"token"}}},
	}
}

func TestConfig(t *testing.T) {
	if err := goodConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no provider":        {func(c *Config) { c.Providers = nil }, "0 providers"},
		"no binding":         {func(c *Config) { c.Bindings = nil }, "0 bindings"},
		"provider twice":     {func(c *Config) { c.Providers[1].ProviderID = "f" }, "providerId"},
		"kind":               {func(c *Config) { c.Providers[0].Kind = "vault" }, "neither of kind"},
		"relative dir":       {func(c *Config) { c.Providers[0].Dir = "d" }, "absolute dir"},
		"dir and argv":       {func(c *Config) { c.Providers[0].Argv = []string{"/x"} }, "nothing else"},
		"relative program":   {func(c *Config) { c.Providers[1].Argv[0] = "true" }, "absolute path"},
		"no time":            {func(c *Config) { c.Providers[1].TimeoutMs = 0 }, "timeoutMs"},
		"too much time":      {func(c *Config) { c.Providers[1].TimeoutMs = 30_001 }, "timeoutMs"},
		"binding id":         {func(c *Config) { c.Bindings[0].BindingID = "../b" }, "bindingId"},
		"binding's provider": {func(c *Config) { c.Bindings[0].ProviderID = "g" }, "not there"},
		"category":           {func(c *Config) { c.Bindings[0].Category = "" }, "category"},
		"binding's kind":     {func(c *Config) { c.Bindings[0].Kind = "x" }, "kind outside"},
		"no field":           {func(c *Config) { c.Bindings[0].Fields = nil }, "field ids"},
		"field twice":        {func(c *Config) { c.Bindings[0].Fields = []string{"a", "a"} }, "field ids"},
		"17 fields":          {func(c *Config) { c.Bindings[0].Fields = strings.Split(strings.Repeat("a ", 16)+"a", " ") }, "field ids"},
		"no workspace":       {func(c *Config) { c.Bindings[0].Workspaces = []string{} }, "workspaces"},
	} {
		t.Run(name, func(t *testing.T) {
			c := goodConfig()
			c.Bindings, c.Providers = slices.Clone(c.Bindings), slices.Clone(c.Providers)
			tt.change(&c)
			if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestOpenChecksTheHost(t *testing.T) {
	c := goodConfig()
	c.Providers[0].Dir = t.TempDir()
	if err := os.Chmod(c.Providers[0].Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(); err == nil || !strings.Contains(err.Error(), "provider f") {
		t.Errorf("a directory that others can enter: %v", err)
	}
	if err := os.Chmod(c.Providers[0].Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Open(); err != nil || len(p) != 2 {
		t.Errorf("%d providers, %v", len(p), err)
	}
}
