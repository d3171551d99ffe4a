// SPDX-License-Identifier: Apache-2.0

// Package registry moves bundles through an OCI registry.
//
// In a repository a bundle is one OCI image manifest of artifact type [evidence.ArtifactType]: the
// empty configuration, one layer for each evidence file, then one for each raw artifact in the order
// of the signed list, each with its name as title. Every byte of the manifest follows from the bundle;
// [Pull] makes it again and refuses another. [Attach] stores the same manifest with an image as its
// subject, beside one plain Sigstore bundle for each signer, where other tools look for them. A
// registry without the referrers API gets the tag "sha256-<hex>" of the distribution specification.
//
// It owns the transport. A registry is not trusted: sizes are bounded before anything is allocated,
// digests are checked as bytes arrive, and lists end. What a pulled bundle says, and who signed it,
// is for the gate to judge.
package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Bounds of what a registry may answer.
const (
	maxManifest = 4 << 20 // bytes; registries refuse larger ones
	maxFound    = 64      // bundles of one image
	maxPages    = 16      // of a list of referrers
)

var (
	// ErrManifest means that a manifest is not that of the bundle in it, or not within the bounds.
	ErrManifest = errors.New("not the manifest of a bundle")
	// ErrNotSubject means that the bundle says nothing of the image.
	ErrNotSubject = errors.New("the bundle has no image with this manifest digest")
	// ErrNoEvidence means that an image has no bundle in its repository.
	ErrNoEvidence = errors.New("the image has no evidence in its repository")
)

// Config says how to reach registries.
type Config struct {
	// Client sends the requests, with credentials where needed; nil is one without any.
	Client remote.Client
	// PlainHTTP speaks HTTP without TLS: bundles are signed, but who reads them is anybody.
	PlainHTTP bool
}

func (c Config) open(reference string) (*remote.Repository, error) {
	r, err := remote.NewRepository(reference)
	if err != nil {
		return nil, fmt.Errorf("reference %q: %w", reference, err)
	}
	r.PlainHTTP, r.MaxMetadataBytes, r.ReferrerListMaxPages = c.PlainHTTP, maxManifest, maxPages
	// The index that the fallback tag named before stays until the registry collects it: deletion is
	// disabled in most registries, and an error of it would hide that the push has succeeded.
	r.SkipReferrersGC = true
	if c.Client != nil {
		r.Client = c.Client
	}
	return r, nil
}

// Push stores b at reference, "registry/repository:tag", and returns the manifest's digest. Without
// a tag the bundle is found by that digest only.
func Push(ctx context.Context, c Config, b *evidence.Bundle, reference string) (string, error) {
	r, err := c.open(reference)
	if err != nil {
		return "", err
	}
	if _, err := r.Reference.Digest(); err == nil {
		return "", fmt.Errorf("push to %q: the digest follows from the bundle; name a tag", reference)
	}
	m, err := upload(ctx, r, b, nil)
	if err != nil {
		return "", err
	}
	desc := describe(m, ocispec.MediaTypeImageManifest)
	if r.Reference.Reference == "" {
		err = r.Push(ctx, desc, bytes.NewReader(m))
	} else {
		err = r.PushReference(ctx, desc, bytes.NewReader(m), r.Reference.Reference)
	}
	if err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		return "", fmt.Errorf("push manifest: %w", err)
	}
	return desc.Digest.String(), nil
}

// Attach stores b beside an image, "registry/repository@sha256:...", whose manifest must be one of
// the bundle's images, and returns the digest of the evidence manifest. It may be repeated.
func Attach(ctx context.Context, c Config, b *evidence.Bundle, image string) (string, error) {
	st, _, err := evidence.UnverifiedStatement(b)
	if err != nil {
		return "", err
	}
	r, subject, err := c.image(ctx, image)
	if err != nil {
		return "", err
	}
	of := func(m evidence.Image) bool { return m.ManifestDigest == subject.Digest.String() }
	if !slices.ContainsFunc(st.Predicate.Images, of) {
		return "", fmt.Errorf("attach to %s: %w", subject.Digest, ErrNotSubject)
	}
	m, err := upload(ctx, r, b, &subject)
	if err != nil {
		return "", err
	}
	manifests := [][]byte{m}
	for _, name := range b.EvidenceFiles() {
		data, _ := b.File(name)
		plain, err := strictjson.Marshal(sigstoreManifest(data, subject))
		if err != nil {
			return "", err
		}
		manifests = append(manifests, plain)
	}
	for _, m := range manifests {
		desc := describe(m, ocispec.MediaTypeImageManifest)
		if err := r.Push(ctx, desc, bytes.NewReader(m)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
			return "", fmt.Errorf("push manifest: %w", err)
		}
	}
	return digest.FromBytes(m).String(), nil
}

// image opens an image's repository and asks for its descriptor.
func (c Config) image(ctx context.Context, image string) (*remote.Repository, ocispec.Descriptor, error) {
	r, err := c.open(image)
	if err != nil {
		return nil, ocispec.Descriptor{}, err
	}
	want, err := r.Reference.Digest()
	if err != nil {
		return nil, ocispec.Descriptor{}, fmt.Errorf("image %q: name it by digest, registry/repository@sha256:...", image)
	}
	got, err := r.Resolve(ctx, want.String())
	if err != nil {
		return nil, ocispec.Descriptor{}, fmt.Errorf("resolve image: %w", err)
	}
	if got.Digest != want {
		return nil, ocispec.Descriptor{}, fmt.Errorf("resolve image: asked for %s, got %s", want, got.Digest)
	}
	return r, ocispec.Descriptor{MediaType: got.MediaType, Digest: got.Digest, Size: got.Size}, nil
}

// upload stores the blobs of b and returns the bytes of its manifest, which it does not store.
func upload(ctx context.Context, r *remote.Repository, b *evidence.Bundle, subject *ocispec.Descriptor) ([]byte, error) {
	m, blobs, err := manifest(b, subject)
	if err != nil {
		return nil, err
	}
	done := map[digest.Digest]bool{}
	for i, desc := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if done[desc.Digest] {
			continue
		}
		done[desc.Digest] = true
		there, err := r.Blobs().Exists(ctx, desc)
		if err != nil {
			return nil, fmt.Errorf("ask for blob %s: %w", desc.Digest, err)
		}
		if there {
			continue
		}
		if err := r.Blobs().Push(ctx, desc, bytes.NewReader(blobs[i])); err != nil {
			return nil, fmt.Errorf("push blob %s: %w", desc.Digest, err)
		}
	}
	return strictjson.Marshal(m)
}

// manifest makes the evidence manifest of b, and the contents of its configuration and layers.
func manifest(b *evidence.Bundle, subject *ocispec.Descriptor) (ocispec.Manifest, [][]byte, error) {
	st, _, err := evidence.UnverifiedStatement(b)
	if err != nil {
		return ocispec.Manifest{}, nil, err
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: evidence.ArtifactType, Config: empty(), Subject: subject, Layers: evidenceLayers(b),
	}
	blobs := [][]byte{ocispec.DescriptorEmptyJSON.Data}
	for _, name := range b.EvidenceFiles() {
		data, _ := b.File(name)
		blobs = append(blobs, data)
	}
	for _, a := range st.Predicate.Artifacts.Items {
		m.Layers = append(m.Layers, artifactLayer(a))
		data, ok := b.File(evidence.BlobName(a.Digest))
		if !ok || int64(len(data)) != a.Size || evidence.Digest(data) != a.Digest {
			return m, nil, &evidence.Denied{Reason: evidence.ReasonArtifact, Detail: a.Name}
		}
		blobs = append(blobs, data)
	}
	return m, blobs, nil
}

func evidenceLayers(b *evidence.Bundle) []ocispec.Descriptor {
	var out []ocispec.Descriptor
	for _, name := range b.EvidenceFiles() {
		data, _ := b.File(name)
		desc := describe(data, evidence.BundleMediaType)
		desc.Annotations = map[string]string{ocispec.AnnotationTitle: name}
		out = append(out, desc)
	}
	return out
}

func artifactLayer(a evidence.Artifact) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: a.MediaType, Digest: digest.Digest(a.Digest), Size: a.Size,
		Annotations: map[string]string{ocispec.AnnotationTitle: a.Name},
	}
}

// sigstoreManifest is how one Sigstore bundle refers to an image, as cosign writes and reads it.
func sigstoreManifest(file []byte, subject ocispec.Descriptor) ocispec.Manifest {
	return ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: evidence.BundleMediaType, Config: empty(), Subject: &subject,
		Layers: []ocispec.Descriptor{describe(file, evidence.BundleMediaType)},
		Annotations: map[string]string{
			"dev.sigstore.bundle.content":       "dsse-envelope",
			"dev.sigstore.bundle.predicateType": evidence.PredicateType,
		},
	}
}

// empty describes the empty configuration; unlike the library's, without the data.
func empty() ocispec.Descriptor {
	e := ocispec.DescriptorEmptyJSON
	e.Data = nil
	return e
}

func describe(data []byte, mediaType string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// fetch reads what desc describes: at most limit bytes, exactly its size, and of its digest.
func fetch(ctx context.Context, from content.Fetcher, desc ocispec.Descriptor, limit int64) (_ []byte, err error) {
	if desc.Size < 0 || desc.Size > limit {
		return nil, &evidence.Denied{Reason: evidence.ReasonFileSize, Detail: fmt.Sprintf("%s has %d bytes, at most %d", desc.Digest, desc.Size, limit)}
	}
	if err := desc.Digest.Validate(); err != nil || desc.Digest.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("%w: digest %q", ErrManifest, desc.Digest)
	}
	rc, err := from.Fetch(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	defer func() { err = errors.Join(err, rc.Close()) }()
	var data bytes.Buffer // grows with what arrives, not with what is announced
	v := content.NewVerifyReader(io.LimitReader(rc, desc.Size+1), desc)
	if _, err := io.Copy(&data, v); err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	if err := v.Verify(); err != nil {
		return nil, fmt.Errorf("fetch %s: %w", desc.Digest, err)
	}
	return data.Bytes(), nil
}
