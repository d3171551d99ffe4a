// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	digests "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	oras "oras.land/oras-go/v2/registry/remote"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/registry"
	"github.com/hallmark-sandbox/hallmark/evidence/registry/registrytest"
)

func TestMain(m *testing.M) {
	registrytest.Main(m, func(kind string) http.Handler { // with the referrers API ("api") or without
		return ggcr.New(ggcr.WithReferrersSupport(kind == "api"), ggcr.Logger(log.New(io.Discard, "", 0)))
	})
}

func same(t *testing.T, w *evidencetest.World, got, want *evidence.Bundle) {
	t.Helper()
	if fmt.Sprint(got.Names()) != fmt.Sprint(want.Names()) {
		t.Errorf("files %q, want %q", got.Names(), want.Names())
	}
	for _, name := range want.Names() {
		a, _ := got.File(name)
		b, _ := want.File(name)
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs", name)
		}
	}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	if d := evidence.Decide(q, got); !d.Admitted {
		t.Errorf("the pulled bundle is denied: %s", d.Detail)
	}
}

func TestPushAndPull(t *testing.T) {
	address := registrytest.Start(t, "api")
	w, b, _ := registrytest.World(t, address)
	ctx := context.Background()
	at := address + "/evidence"
	digest, err := registry.Push(ctx, registrytest.Plain, b, at+":latest")
	if err != nil {
		t.Fatal(err)
	}
	for _, reference := range []string{at + ":latest", at + "@" + digest} {
		got, err := registry.Pull(ctx, registrytest.Plain, reference)
		if err != nil {
			t.Fatal(err)
		}
		same(t, w, got, b)
	}
	// A second signer changes the manifest and keeps the artifacts.
	two, _, err := evidence.MakeBundle(w.Statement, w.Blobs, w.Evidence, w.Gate)
	if err != nil {
		t.Fatal(err)
	}
	other, err := registry.Push(ctx, registrytest.Plain, two, at)
	if err != nil || other == digest {
		t.Fatalf("%s, %v", other, err)
	}
	if got, err := registry.Pull(ctx, registrytest.Plain, at+"@"+other); err != nil || len(got.EvidenceFiles()) != 2 {
		t.Errorf("two signers: %v, %v", got, err)
	}
	for _, reference := range []string{at, at + ":none", at + "@" + evidence.Digest(nil), "::"} {
		if _, err := registry.Pull(ctx, registrytest.Plain, reference); err == nil {
			t.Errorf("%s was pulled", reference)
		}
	}
}

func TestEvidenceOfAnImage(t *testing.T) {
	for _, mode := range []string{"api", "fallback"} {
		t.Run(mode, func(t *testing.T) {
			address := registrytest.Start(t, mode)
			w, b, image := registrytest.World(t, address)
			ctx := context.Background()
			if _, err := registry.PullImage(ctx, registrytest.Plain, image); !errors.Is(err, registry.ErrNoEvidence) {
				t.Fatalf("before: %v", err)
			}
			var digest string
			for range 2 { // again gives the same
				var err error
				if digest, err = registry.Attach(ctx, registrytest.Plain, b, image); err != nil {
					t.Fatal(err)
				}
			}
			found, err := registry.PullImage(ctx, registrytest.Plain, image)
			if err != nil {
				t.Fatal(err)
			}
			if len(found) != 1 || found[0].Digest != digest {
				t.Fatalf("%d bundles, want the one of %s", len(found), digest)
			}
			same(t, w, found[0].Bundle, b)

			// Without the API it was the fallback tag that was read.
			subject := image[strings.Index(image, "@")+1:]
			tag := get(t, address, "/v2/app/manifests/"+strings.Replace(subject, ":", "-", 1))
			api := get(t, address, "/v2/app/referrers/"+subject)
			if (api == http.StatusOK) != (mode == "api") || mode != "api" && tag != http.StatusOK {
				t.Errorf("referrers: status %d, fallback tag: status %d", api, tag)
			}
			// Other tools find the plain bundle.
			n := 0
			file, _ := b.File(evidence.EvidenceFile)
			r, err := oras.NewRepository(image)
			if err != nil {
				t.Fatal(err)
			}
			r.PlainHTTP, r.Client = true, http.DefaultClient
			desc, err := r.Resolve(ctx, subject)
			if err != nil {
				t.Fatal(err)
			}
			err = r.Referrers(ctx, desc, "", func(page []ocispec.Descriptor) error {
				for _, d := range page {
					rc, err := r.Fetch(ctx, d)
					if err != nil {
						return err
					}
					var m ocispec.Manifest
					if err := errors.Join(json.NewDecoder(rc).Decode(&m), rc.Close()); err != nil {
						return err
					}
					if m.ArtifactType == evidence.BundleMediaType && len(m.Layers) == 1 && m.Layers[0].Digest == digests.FromBytes(file) {
						n++
					}
				}
				return nil
			})
			if err != nil || n != 1 {
				t.Errorf("%d Sigstore bundles, %v", n, err)
			}

			w.Statement.Predicate.Images[0].ManifestDigest = evidence.Digest(nil)
			other, err := w.Bundle()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := registry.Attach(ctx, registrytest.Plain, other, image); !errors.Is(err, registry.ErrNotSubject) {
				t.Errorf("evidence of another image: %v", err)
			}
			if _, err := registry.Attach(ctx, registrytest.Plain, b, address+"/app:tag"); err == nil {
				t.Error("an image was named by its tag")
			}
		})
	}
}

func get(t *testing.T, address, path string) int {
	t.Helper()
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// hostile stands between the client and a good registry. change gets each good answer to a GET, and
// may write another in its place.
func hostile(t *testing.T, good string, change func(w http.ResponseWriter, path string, h http.Header, body []byte) bool) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := url.URL{Scheme: "http", Host: good, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		req.Header = r.Header.Clone()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		if r.Method == http.MethodGet && resp.StatusCode == http.StatusOK && change(w, r.URL.Path, resp.Header, body) {
			return
		}
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		w.Write(body)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestHostileRegistries(t *testing.T) {
	good := registrytest.Start(t, "api")
	_, b, image := registrytest.World(t, good)
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	digest, err := registry.Attach(ctx, registrytest.Plain, b, image)
	if err != nil {
		t.Fatal(err)
	}
	send := func(w http.ResponseWriter, h http.Header, body []byte) bool {
		for k, v := range h {
			w.Header()[k] = v
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
		return true
	}
	blobs := func(f func(w http.ResponseWriter, h http.Header, body []byte) bool) func(http.ResponseWriter, string, http.Header, []byte) bool {
		return func(w http.ResponseWriter, path string, h http.Header, body []byte) bool {
			return strings.Contains(path, "/blobs/") && f(w, h, body)
		}
	}
	manifests := func(f func(w http.ResponseWriter, h http.Header, body []byte) bool) func(http.ResponseWriter, string, http.Header, []byte) bool {
		return func(w http.ResponseWriter, path string, h http.Header, body []byte) bool {
			return strings.HasSuffix(path, "/manifests/"+digest) && f(w, h, body)
		}
	}
	endless := func(w http.ResponseWriter) bool {
		chunk := bytes.Repeat([]byte{' '}, 64<<10)
		for sent := 0; sent < 1<<30; sent += len(chunk) { // until the client has enough
			if _, err := w.Write(chunk); err != nil {
				return true
			}
		}
		t.Error("the client took a GiB")
		return true
	}
	list := func(edit func(*ocispec.Index)) func(http.ResponseWriter, string, http.Header, []byte) bool {
		return func(w http.ResponseWriter, path string, h http.Header, body []byte) bool {
			if !strings.Contains(path, "/referrers/") {
				return false
			}
			var index ocispec.Index
			if err := json.Unmarshal(body, &index); err != nil {
				t.Error(err)
			}
			edit(&index)
			body, err := json.Marshal(index)
			if err != nil {
				t.Error(err)
			}
			return send(w, h, body)
		}
	}
	flip := func(w http.ResponseWriter, h http.Header, body []byte) bool {
		body[len(body)/2] ^= 1
		return send(w, h, body)
	}
	pages := 0
	for name, change := range map[string]func(http.ResponseWriter, string, http.Header, []byte) bool{
		"blob of another digest":     blobs(flip),
		"manifest of another digest": manifests(flip),
		"blob truncated":             blobs(func(w http.ResponseWriter, h http.Header, body []byte) bool { return send(w, h, body[:len(body)-1]) }),
		"blob cut off": blobs(func(w http.ResponseWriter, h http.Header, body []byte) bool {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}),
		"blob extended": blobs(func(w http.ResponseWriter, h http.Header, body []byte) bool { return send(w, h, append(body, ' ')) }),
		"blob extended without a length": blobs(func(w http.ResponseWriter, _ http.Header, body []byte) bool {
			w.Write(body)
			w.(http.Flusher).Flush()
			w.Write([]byte{' '})
			return true
		}),
		"blob without an end":          blobs(func(w http.ResponseWriter, _ http.Header, _ []byte) bool { return endless(w) }),
		"manifest without an end":      manifests(func(w http.ResponseWriter, _ http.Header, _ []byte) bool { return endless(w) }),
		"manifest announced too large": list(func(i *ocispec.Index) { i.Manifests[0].Size = 1 << 40 }),
		"negative size":                list(func(i *ocispec.Index) { i.Manifests[0].Size = -1 }),
		"other algorithm": list(func(i *ocispec.Index) {
			i.Manifests[0].Digest = "sha512:" + i.Manifests[0].Digest[7:] + i.Manifests[0].Digest[7:]
		}),
		"no digest":            list(func(i *ocispec.Index) { i.Manifests[0].Digest = "../../x" }),
		"an index as evidence": list(func(i *ocispec.Index) { i.Manifests[0].MediaType = ocispec.MediaTypeImageIndex }),
		"evidence withheld":    list(func(i *ocispec.Index) { i.Manifests = nil }),
		"too many bundles": list(func(i *ocispec.Index) {
			for n := range 1000 {
				d := i.Manifests[0]
				d.Digest = digests.FromString(strconv.Itoa(n))
				i.Manifests = append(i.Manifests, d)
			}
		}),
		"list without an end": func(w http.ResponseWriter, path string, h http.Header, body []byte) bool {
			if !strings.Contains(path, "/referrers/") {
				return false
			}
			pages++
			h.Set("Link", "<"+path+"?page="+strconv.Itoa(pages)+`>; rel="next"`)
			return send(w, h, body)
		},
		"list that is one long text": func(w http.ResponseWriter, path string, _ http.Header, _ []byte) bool {
			return strings.Contains(path, "/referrers/") && func() bool { w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex); return endless(w) }()
		},
	} {
		at := hostile(t, good, change)
		found, err := registry.PullImage(ctx, registrytest.Plain, strings.Replace(image, good, at, 1))
		if err == nil {
			t.Errorf("%s: %d bundles were accepted", name, len(found))
		} else if ctx.Err() != nil {
			t.Fatalf("%s: out of time: %v", name, err)
		} else if errors.Is(err, registry.ErrNoEvidence) != (name == "evidence withheld") {
			t.Errorf("%s: %v", name, err)
		} else if sized := name == "manifest announced too large" || name == "negative size"; sized != (evidence.ReasonOf(err) == evidence.ReasonFileSize) {
			t.Errorf("%s: %v", name, err)
		} else if name == "too many bundles" && !strings.Contains(err.Error(), "more than 64 bundles") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if pages > 20 {
		t.Errorf("%d pages were read", pages)
	}
	// The proxy itself changes nothing.
	at := hostile(t, good, func(http.ResponseWriter, string, http.Header, []byte) bool { return false })
	if _, err := registry.PullImage(ctx, registrytest.Plain, strings.Replace(image, good, at, 1)); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

// A registry that never answers ends with the caller's time, not later.
func TestSilentRegistry(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer s.Close()
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	if _, err := registry.Pull(ctx, registrytest.Plain, strings.TrimPrefix(s.URL, "http://")+"/evidence:latest"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
