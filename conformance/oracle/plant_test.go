// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// shelf is an Owner that removes on demand, newest first.
type shelf struct {
	removals []func(context.Context) error
	closed   bool
}

func (s *shelf) Own(_ string, remove func(context.Context) error) error {
	if s.closed {
		return errors.New("closed")
	}
	s.removals = append(s.removals, remove)
	return nil
}

func (s *shelf) clear(t *testing.T) {
	t.Helper()
	for i := len(s.removals) - 1; i >= 0; i-- {
		if err := s.removals[i](t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// store is an engine with containers by id and images by id, of which names point at some.
type store struct {
	containers map[string]string // id -> name
	images     map[string]bool
	names      map[string]string // name -> image
	onCreate   func(w http.ResponseWriter, name string) (answered bool)
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := regexp.MustCompile(`^/v[0-9.]+`).ReplaceAllString(r.URL.Path, "")
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
	missing := func() { answer(http.StatusNotFound, map[string]string{"message": "no such thing"}) }
	last := func(prefix, suffix string) string {
		return strings.TrimSuffix(strings.TrimPrefix(path, prefix), suffix)
	}
	switch {
	case path == "/_ping":
		w.Header().Set("API-Version", "1.41")
	case path == "/containers/create":
		name := r.URL.Query().Get("name")
		if s.onCreate != nil && s.onCreate(w, name) {
			return
		}
		s.containers["id-"+name] = name
		answer(http.StatusCreated, map[string]any{"Id": "id-" + name})
	case strings.HasPrefix(path, "/containers/") && r.Method == http.MethodGet:
		for id, name := range s.containers {
			if ref := last("/containers/", "/json"); ref == id || ref == name {
				answer(http.StatusOK, map[string]any{"Id": id, "Name": "/" + name, "State": map[string]any{}, "HostConfig": map[string]any{}, "Config": map[string]any{}})
				return
			}
		}
		missing()
	case strings.HasPrefix(path, "/containers/") && r.Method == http.MethodDelete:
		if _, ok := s.containers[last("/containers/", "")]; !ok {
			missing()
			return
		}
		delete(s.containers, last("/containers/", ""))
	case path == "/images/create":
		s.images["imported"] = true
		s.names[familiar(r.URL.Query().Get("repo"))] = "imported"
	case strings.HasSuffix(path, "/tag"):
		s.names[familiar(r.URL.Query().Get("repo")+":"+r.URL.Query().Get("tag"))] = last("/images/", "/tag")
		w.WriteHeader(http.StatusCreated)
	case strings.HasPrefix(path, "/images/") && r.Method == http.MethodGet:
		ref := last("/images/", "/json")
		id, named := s.names[ref]
		if !named {
			id = ref
		}
		if !s.images[id] {
			missing()
			return
		}
		var tags []string
		for name, to := range s.names {
			if to == id {
				tags = append(tags, name)
			}
		}
		answer(http.StatusOK, map[string]any{"Id": id, "RepoTags": tags})
	case strings.HasPrefix(path, "/images/") && r.Method == http.MethodDelete:
		ref := last("/images/", "")
		id, named := s.names[ref]
		if !named {
			id = ref
		}
		delete(s.names, ref)
		if !slices.Contains(slices.Collect(maps.Values(s.names)), id) {
			delete(s.images, id) // with its last name, as the engine does
		}
		answer(http.StatusOK, []any{})
	default:
		missing()
	}
}

// familiar is a name without the registry that the engine's client adds.
func familiar(name string) string { return strings.TrimPrefix(name, "docker.io/library/") }

// storeEngine serves s and connects to it.
func storeEngine(t *testing.T, s *store, owner Owner) *Engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "st-") // short: sockaddr_un(7)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	e, err := OpenEngine(filepath.Join(dir, "s"), owner)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A plant is removed whatever became of the engine's answer, and nobody else's container ever is.
func TestPlantIsRecordedBeforeItIsMade(t *testing.T) {
	drop := func(w http.ResponseWriter) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			c.Close()
		}
	}
	tests := []struct {
		name     string
		onCreate func(s *store) func(w http.ResponseWriter, name string) bool
		taken    bool // somebody has the name before
		made     bool
		left     []string // beside the bystander
	}{
		{name: "made", made: true},
		{name: "the answer is lost", onCreate: func(s *store) func(http.ResponseWriter, string) bool {
			return func(w http.ResponseWriter, name string) bool {
				s.containers["id-"+name] = name
				drop(w)
				return true
			}
		}},
		{name: "lost before it was made", onCreate: func(*store) func(http.ResponseWriter, string) bool {
			return func(w http.ResponseWriter, _ string) bool { drop(w); return true }
		}},
		{name: "somebody takes the name in between", onCreate: func(s *store) func(http.ResponseWriter, string) bool {
			return func(w http.ResponseWriter, name string) bool {
				s.containers["theirs"] = name
				w.WriteHeader(http.StatusConflict)
				return true
			}
		}, left: []string{"theirs"}},
		{name: "somebody has the name", taken: true, left: []string{"theirs"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &store{containers: map[string]string{"bystander": "plant-2"}}
			if tt.onCreate != nil {
				s.onCreate = tt.onCreate(s)
			}
			if tt.taken {
				s.containers["theirs"] = "plant"
			}
			owner := &shelf{}
			id, err := storeEngine(t, s, owner).Make(t.Context(), Plant{Name: "plant", Image: "i", Argv: []string{"/plant"}})
			if (err == nil) != tt.made || tt.made && id != "id-plant" {
				t.Errorf("made %q, %v", id, err)
			}
			owner.clear(t)
			if left := slices.Sorted(maps.Keys(s.containers)); !slices.Equal(left, append([]string{"bystander"}, tt.left...)) {
				t.Errorf("left: %q", left)
			}
		})
	}
	t.Run("the owner takes no more", func(t *testing.T) {
		s, owner := &store{containers: map[string]string{}}, &shelf{}
		e := storeEngine(t, s, owner)
		owner.closed = true
		if _, err := e.Make(t.Context(), Plant{Image: "i", Argv: []string{"/plant"}}); err == nil || len(s.containers) > 0 {
			t.Errorf("made %q, %v", s.containers, err)
		}
	})
}

// No name that anybody has is touched, and one of ours goes only while it is. An image outlives the
// name that it was lent.
func TestOnlyOwnNamesAreMoved(t *testing.T) {
	s := &store{images: map[string]bool{"pinned": true, "other": true, "nameless": true, "pulled": true}, names: map[string]string{"app:1": "pinned", "keep:1": "other"}}
	owner := &shelf{}
	e := storeEngine(t, s, owner)
	if _, err := e.Name(t.Context(), "app:1", "other"); err == nil {
		t.Error("a name that somebody has is taken")
	}
	for image, name := range map[string]string{"nameless": "lent:1", "pinned": "second:1", "other": "theirs:1"} {
		n, err := e.Name(t.Context(), name, image)
		if err == nil && image == "pinned" {
			err = n.Move(t.Context(), "other")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := map[string]string{"app:1": "pinned", "keep:1": "other", "lent:1": "nameless", "second:1": "other", "theirs:1": "other"}; !maps.Equal(s.names, want) {
		t.Fatalf("names are %q, want %q", s.names, want)
	}
	s.names["theirs:1"], s.names["app:1"] = "pulled", "pulled" // by somebody else, meanwhile
	owner.clear(t)
	if want := map[string]string{"app:1": "pulled", "keep:1": "other", "theirs:1": "pulled"}; !maps.Equal(s.names, want) {
		t.Errorf("names are %q, want %q", s.names, want)
	}
	if images := slices.Sorted(maps.Keys(s.images)); !slices.Equal(images, []string{"nameless", "other", "pinned", "pulled"}) {
		t.Errorf("images are %q", images)
	}
}
