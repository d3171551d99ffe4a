// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/sirupsen/logrus"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/registry"
	"github.com/hallmark-sandbox/hallmark/evidence/registry/registrytest"
)

// TestMain makes this program the registry of the distribution project when it is asked to be one.
func TestMain(m *testing.M) {
	registrytest.Main(m, func(string) http.Handler {
		logrus.SetLevel(logrus.FatalLevel)
		c := &configuration.Configuration{Storage: configuration.Storage{"inmemory": configuration.Parameters{}}}
		c.HTTP.Secret = rand.Text()
		return handlers.NewApp(context.Background(), c)
	})
}

// The registry that most others are made of has no referrers API: evidence is found by the fallback
// tag, and what was pushed comes back and is admitted.
func TestDistributionRegistry(t *testing.T) {
	address := registrytest.Start(t, "distribution")
	w, b, at := registrytest.World(t, address)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	c := registrytest.Plain
	if _, err := registry.Push(ctx, c, b, address+"/evidence:v1"); err != nil {
		t.Fatal(err)
	}
	tagged, err := registry.Pull(ctx, c, address+"/evidence:v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Attach(ctx, c, b, at); err != nil {
		t.Fatal(err)
	}
	// A second run of the same image comes beside the first.
	w.Statement.Predicate.Run.Sequence++
	second, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Attach(ctx, c, second, at); err != nil {
		t.Fatal(err)
	}
	found, err := registry.PullImage(ctx, c, at)
	if err != nil || len(found) != 2 {
		t.Fatalf("%d bundles, %v", len(found), err)
	}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	for _, got := range []*evidence.Bundle{tagged, found[0].Bundle, found[1].Bundle} {
		if d := evidence.Decide(q, got); !d.Admitted {
			t.Errorf("denied: %s", d.Detail)
		}
	}
	if n := len(strings.Split(tag(t, address, strings.TrimPrefix(at, address+"/app@")), `"digest"`)) - 1; n != 4 {
		t.Errorf("the fallback tag lists %d manifests", n)
	}
}

func tag(t *testing.T, address, digest string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+address+"/v2/app/manifests/"+strings.Replace(digest, ":", "-", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.oci.image.index.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text strings.Builder
	if _, err := bufio.NewReader(resp.Body).WriteTo(&text); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("fallback tag: status %d, %v", resp.StatusCode, err)
	}
	return text.String()
}
