// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// The raw artifacts lie in an OCI image layout of which every byte follows from the signed
// list: oci-layout is a constant, the one manifest has the artifacts as layers in their order
// and the empty configuration, and index.json names that manifest. A verifier makes all three
// again and compares bytes.
const (
	layoutFile = "oci-layout"
	indexFile  = "index.json"
	blobPrefix = "blobs/sha256/"

	// ArtifactType names evidence in an OCI layout and in a registry.
	ArtifactType = "application/vnd.hallmark.evidence.v1"

	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaEmpty    = "application/vnd.oci.empty.v1+json"
	emptyBlob     = "{}"
	layoutText    = `{"imageLayoutVersion":"1.0.0"}`
)

type ociDescriptor struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

type ociManifest struct {
	SchemaVersion int64           `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	ArtifactType  string          `json:"artifactType"`
	Config        ociDescriptor   `json:"config"`
	Layers        []ociDescriptor `json:"layers"`
}

type ociIndex struct {
	SchemaVersion int64           `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Manifests     []ociDescriptor `json:"manifests"`
}

// LayoutFiles returns the files of the layout that follow from the list, by their name in the
// bundle directory.
func LayoutFiles(items []Artifact) (map[string][]byte, error) {
	m := ociManifest{
		SchemaVersion: 2, MediaType: mediaManifest, ArtifactType: ArtifactType,
		Config: ociDescriptor{MediaType: mediaEmpty, Digest: Digest([]byte(emptyBlob)), Size: int64(len(emptyBlob))},
	}
	for _, a := range items {
		m.Layers = append(m.Layers, ociDescriptor{
			MediaType: a.MediaType, Digest: a.Digest, Size: a.Size,
			Annotations: map[string]string{"org.opencontainers.image.title": a.Name},
		})
	}
	manifest, err := strictjson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("OCI manifest: %w", err)
	}
	index, err := strictjson.Marshal(ociIndex{
		SchemaVersion: 2, MediaType: mediaIndex,
		Manifests: []ociDescriptor{{
			MediaType: mediaManifest, ArtifactType: ArtifactType,
			Digest: Digest(manifest), Size: int64(len(manifest)),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("OCI index: %w", err)
	}
	return map[string][]byte{
		layoutFile:                          []byte(layoutText),
		indexFile:                           index,
		blobName(Digest(manifest)):          manifest,
		blobName(Digest([]byte(emptyBlob))): []byte(emptyBlob),
	}, nil
}

func blobName(digest string) string { return blobPrefix + strings.TrimPrefix(digest, digestPrefix) }

func artifactsRoot(items []Artifact) (string, error) {
	if items == nil {
		items = []Artifact{}
	}
	b, err := strictjson.Canonical(items)
	if err != nil {
		return "", fmt.Errorf("artifacts root: %w", err)
	}
	return Digest(b), nil
}

// checkArtifacts is the file part of step 13: the bundle holds exactly the signed blobs and
// the layout that follows from them.
func checkArtifacts(p Predicate, b *Bundle) error {
	want, err := LayoutFiles(p.Artifacts.Items)
	if err != nil {
		return deny(ReasonLayout, "%v", err)
	}
	for _, name := range slices.Sorted(keysOf(want)) {
		f, ok := b.files[name]
		if !ok {
			return deny(ReasonFileGone, "%s", name)
		}
		if string(f.data) != string(want[name]) {
			return deny(ReasonLayout, "%s", name)
		}
	}
	listed := map[string]bool{}
	for _, a := range p.Artifacts.Items {
		name := blobName(a.Digest)
		listed[name] = true
		f, ok := b.files[name]
		if !ok {
			return deny(ReasonFileGone, "%s (%s)", name, a.Name)
		}
		if int64(len(f.data)) != a.Size || f.digest() != a.Digest {
			return deny(ReasonArtifact, "%s: %d bytes %s", a.Name, len(f.data), f.digest())
		}
	}
	for _, name := range b.Names() {
		if _, ok := want[name]; !ok && !listed[name] && !isEvidenceFile(name) {
			return deny(ReasonFileExtra, "%s", name)
		}
	}
	return nil
}
