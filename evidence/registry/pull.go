// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Pull fetches the bundle at reference, "registry/repository:tag" or "@sha256:...". Errors of what
// the registry holds are [ErrManifest] or a *evidence.Denied.
func Pull(ctx context.Context, c Config, reference string) (*evidence.Bundle, error) {
	r, err := c.open(reference)
	if err != nil {
		return nil, err
	}
	if r.Reference.Reference == "" {
		return nil, fmt.Errorf("pull %q: name a tag or a digest", reference)
	}
	desc, err := r.Resolve(ctx, r.Reference.Reference)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", r.Reference, err)
	}
	return pull(ctx, r, desc, nil)
}

// Found is one bundle of an image.
type Found struct {
	Digest string // of the evidence manifest
	Bundle *evidence.Bundle
}

// PullImage fetches every bundle that is attached to an image, "registry/repository@sha256:...", at
// most 64, each of at most a bundle's size. One that cannot be fetched is an error: the newest
// evidence may be the one that says that the image failed.
func PullImage(ctx context.Context, c Config, image string) ([]Found, error) {
	r, subject, err := c.image(ctx, image)
	if err != nil {
		return nil, err
	}
	var refs []ocispec.Descriptor
	seen := map[digest.Digest]bool{}
	err = r.Referrers(ctx, subject, "", func(page []ocispec.Descriptor) error {
		for _, d := range page {
			if seen[d.Digest] || !candidate(d) {
				continue
			}
			seen[d.Digest] = true
			if refs = append(refs, d); len(refs) > maxFound {
				return fmt.Errorf("%w: more than %d bundles", ErrManifest, maxFound)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the evidence of %s: %w", subject.Digest, err)
	}
	var out []Found
	for _, d := range refs {
		b, err := pull(ctx, r, d, &subject)
		if d.ArtifactType != evidence.ArtifactType && errors.Is(err, errOtherArtifact) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, Found{Digest: d.Digest.String(), Bundle: b})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: %w", subject.Digest, ErrNoEvidence)
	}
	return out, nil
}

// candidate says whether a referrer may be a bundle. There are registries that list the type of the
// configuration in the place of the artifact's: for those the manifest decides.
func candidate(d ocispec.Descriptor) bool {
	return slices.Contains([]string{evidence.ArtifactType, ocispec.MediaTypeEmptyJSON, ""}, d.ArtifactType)
}

var errOtherArtifact = errors.New("another artifact")

// pull fetches the manifest, from it the evidence files, and from the list in those the artifacts:
// nothing is fetched that the evidence does not name.
func pull(ctx context.Context, r *remote.Repository, desc ocispec.Descriptor, subject *ocispec.Descriptor) (*evidence.Bundle, error) {
	if desc.MediaType != ocispec.MediaTypeImageManifest {
		return nil, fmt.Errorf("%w: %s is of type %q", ErrManifest, desc.Digest, desc.MediaType)
	}
	text, err := fetch(ctx, r.Manifests(), desc, maxManifest)
	if err != nil {
		return nil, err
	}
	// Read leniently, to learn what to fetch; what counts is the comparison with our own bytes below.
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrManifest, desc.Digest, err)
	}
	if m.ArtifactType != evidence.ArtifactType {
		return nil, fmt.Errorf("%w: %w: %s is of type %q", ErrManifest, errOtherArtifact, desc.Digest, m.ArtifactType)
	}
	files := map[string][]byte{}
	for _, l := range m.Layers {
		name := l.Annotations[ocispec.AnnotationTitle]
		if l.MediaType != evidence.BundleMediaType || !evidence.IsEvidenceFile(name) {
			break
		}
		limit, err := evidence.FileLimit(name)
		if err != nil {
			return nil, err
		}
		if files[name], err = fetch(ctx, r.Blobs(), l, limit); err != nil {
			return nil, err
		}
	}
	b := evidence.NewBundle(files)
	st, _, err := evidence.UnverifiedStatement(b)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrManifest, desc.Digest), err)
	}
	own := ocispec.Manifest{
		Versioned: m.Versioned, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: evidence.ArtifactType,
		Config: empty(), Layers: evidenceLayers(b), Subject: m.Subject,
	}
	own.SchemaVersion = 2
	if subject != nil {
		own.Subject = subject
	}
	for _, a := range st.Predicate.Artifacts.Items {
		own.Layers = append(own.Layers, artifactLayer(a))
	}
	again, err := strictjson.Marshal(own)
	if err != nil || !bytes.Equal(again, text) {
		return nil, fmt.Errorf("%w: %s is not what its evidence gives", ErrManifest, desc.Digest)
	}
	return artifacts(ctx, r, files, st.Predicate.Artifacts.Items)
}

// artifacts fetches what the evidence lists and makes the bundle whole.
func artifacts(ctx context.Context, r *remote.Repository, files map[string][]byte, items []evidence.Artifact) (*evidence.Bundle, error) {
	if len(items) > evidence.MaxArtifacts {
		return nil, &evidence.Denied{Reason: evidence.ReasonFileSize, Detail: fmt.Sprintf("%d artifacts", len(items))}
	}
	layout, err := evidence.LayoutFiles(items)
	if err != nil {
		return nil, err
	}
	for name, data := range layout {
		files[name] = data
	}
	left := int64(evidence.MaxTotal)
	for _, data := range files {
		left -= int64(len(data))
	}
	for _, a := range items {
		name := evidence.BlobName(a.Digest)
		if _, ok := files[name]; ok {
			continue
		}
		limit, err := evidence.FileLimit(name)
		if err != nil {
			return nil, err
		}
		data, err := fetch(ctx, r.Blobs(), artifactLayer(a), min(limit, left))
		if err != nil {
			return nil, err
		}
		files[name], left = data, left-int64(len(data))
	}
	return evidence.NewBundle(files), nil
}
