// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	digests "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	oras "oras.land/oras-go/v2/registry/remote"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/registry"
	"github.com/hallmark-sandbox/hallmark/evidence/registry/registrytest"
)

// A manifest that is whole and of its digest, and yet not the one that its evidence gives.
func TestForgedManifests(t *testing.T) {
	address := registrytest.Start(t, "api")
	w, b, image := registrytest.World(t, address)
	ctx := context.Background()
	at := address + "/app"
	if _, err := registry.Push(ctx, registrytest.Plain, b, at+":good"); err != nil {
		t.Fatal(err)
	}
	r, err := oras.NewRepository(at)
	if err != nil {
		t.Fatal(err)
	}
	r.PlainHTTP, r.Client = true, http.DefaultClient
	desc, err := r.Resolve(ctx, "good")
	if err != nil {
		t.Fatal(err)
	}
	good, err := content.FetchAll(ctx, r, desc)
	if err != nil {
		t.Fatal(err)
	}
	other := []byte(`{"_type":"https://in-toto.io/Statement/v1"}`)
	blob := ocispec.Descriptor{MediaType: "text/plain", Digest: digests.FromBytes(other), Size: int64(len(other))}
	if err := r.Blobs().Push(ctx, blob, bytes.NewReader(other)); err != nil {
		t.Fatal(err)
	}
	subject, err := r.Resolve(ctx, image[len(at)+1:])
	if err != nil {
		t.Fatal(err)
	}
	raw := func(f func([]byte) []byte) func() []byte { return func() []byte { return f(bytes.Clone(good)) } }
	edit := func(f func(*ocispec.Manifest)) func() []byte {
		return func() []byte {
			var m ocispec.Manifest
			if err := json.Unmarshal(good, &m); err != nil {
				t.Fatal(err)
			}
			f(&m)
			text, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
	}
	if !bytes.Equal(edit(func(*ocispec.Manifest) {})(), good) {
		t.Fatal("the manifest does not survive being read and written here, so no row would show anything")
	}
	put := func(text []byte) string {
		t.Helper()
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digests.FromBytes(text), Size: int64(len(text))}
		if err := r.PushReference(ctx, d, bytes.NewReader(text), "forged"); err != nil {
			t.Fatal(err)
		}
		return d.Digest.String()
	}
	for name, text := range map[string]func() []byte{
		"a layer more":          edit(func(m *ocispec.Manifest) { m.Layers = append(m.Layers, blob) }),
		"a layer less":          edit(func(m *ocispec.Manifest) { m.Layers = m.Layers[:len(m.Layers)-1] }),
		"layers in other order": edit(func(m *ocispec.Manifest) { m.Layers[1], m.Layers[2] = m.Layers[2], m.Layers[1] }),
		"evidence is not first": edit(func(m *ocispec.Manifest) { m.Layers[0], m.Layers[1] = m.Layers[1], m.Layers[0] }),
		"evidence is another":   edit(func(m *ocispec.Manifest) { m.Layers[0].Digest, m.Layers[0].Size = blob.Digest, blob.Size }),
		"evidence twice":        edit(func(m *ocispec.Manifest) { m.Layers = append(m.Layers[:1:1], m.Layers...) }),
		"evidence with a path": edit(func(m *ocispec.Manifest) {
			m.Layers[0].Annotations[ocispec.AnnotationTitle] = "../evidence.sigstore.json"
		}),
		"artifact renamed":       edit(func(m *ocispec.Manifest) { m.Layers[1].Annotations[ocispec.AnnotationTitle] = "x" }),
		"artifact of other type": edit(func(m *ocispec.Manifest) { m.Layers[1].MediaType = "text/html" }),
		"artifact of other size": edit(func(m *ocispec.Manifest) { m.Layers[1].Size++ }),
		"an annotation":          edit(func(m *ocispec.Manifest) { m.Annotations = map[string]string{"note": "x"} }),
		"another configuration":  edit(func(m *ocispec.Manifest) { m.Config = blob }),
		"another artifact":       edit(func(m *ocispec.Manifest) { m.ArtifactType = "application/x" }),
		"data in the manifest":   edit(func(m *ocispec.Manifest) { m.Layers[1].Data = []byte("x") }),
		"no layers":              edit(func(m *ocispec.Manifest) { m.Layers = nil }),
		"a schema of tomorrow":   edit(func(m *ocispec.Manifest) { m.SchemaVersion = 3 }),
		"white space":            raw(func(b []byte) []byte { return append(b, '\n') }),
		"a name twice": raw(func(b []byte) []byte {
			return bytes.Replace(b, []byte(`{"schemaVersion":2`), []byte(`{"schemaVersion":3,"schemaVersion":2`), 1)
		}),
		"an unknown member": raw(func(b []byte) []byte {
			return bytes.Replace(b, []byte(`{"schemaVersion":2`), []byte(`{"note":2,"schemaVersion":2`), 1)
		}),
	} {
		forged := text()
		if bytes.Equal(forged, good) {
			t.Fatalf("%s: nothing was changed", name)
		}
		got, err := registry.Pull(ctx, registrytest.Plain, at+"@"+put(forged))
		if err == nil || !errors.Is(err, registry.ErrManifest) && evidence.ReasonOf(err) == "" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// What refers to the image, and is of another image by its bytes: the list is not believed.
	wrong := subject
	wrong.Size++
	put(edit(func(m *ocispec.Manifest) { m.Subject = &wrong })())
	if found, err := registry.PullImage(ctx, registrytest.Plain, image); !errors.Is(err, registry.ErrManifest) {
		t.Errorf("evidence with a subject of another size: %d, %v", len(found), err)
	}
	if got, err := registry.Pull(ctx, registrytest.Plain, at+":good"); err != nil {
		t.Errorf("the good one: %v", err)
	} else {
		same(t, w, got, b)
	}
}
