// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sirupsen/logrus"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/registry"
)

// serve in the environment makes this program the registry of the distribution project.
const serve = "HALLMARK_TEST_REGISTRY"

func TestMain(m *testing.M) {
	if os.Getenv(serve) != "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		logrus.SetLevel(logrus.FatalLevel)
		c := &configuration.Configuration{Storage: configuration.Storage{"inmemory": configuration.Parameters{}}}
		c.HTTP.Secret = rand.Text()
		app := handlers.NewApp(context.Background(), c)
		fmt.Println(l.Addr())
		log.Fatal((&http.Server{Handler: app, ReadHeaderTimeout: time.Minute}).Serve(l))
	}
	os.Exit(m.Run())
}

func start(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serve+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		cmd.Wait() // killed
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}

// The registry that most others are made of has no referrers API: evidence is found by the fallback
// tag, and what was pushed comes back and is admitted.
func TestDistributionRegistry(t *testing.T) {
	address := start(t)
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	at, err := name.NewDigest(address+"/app@"+digest.String(), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(at, image); err != nil {
		t.Fatal(err)
	}
	w.Statement.Predicate.Images[0].ManifestDigest = digest.String()
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	c := registry.Config{PlainHTTP: true, Client: http.DefaultClient}
	if _, err := registry.Push(ctx, c, b, address+"/evidence:v1"); err != nil {
		t.Fatal(err)
	}
	tagged, err := registry.Pull(ctx, c, address+"/evidence:v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Attach(ctx, c, b, at.String()); err != nil {
		t.Fatal(err)
	}
	// A second run of the same image comes beside the first.
	w.Statement.Predicate.Run.Sequence++
	second, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Attach(ctx, c, second, at.String()); err != nil {
		t.Fatal(err)
	}
	found, err := registry.PullImage(ctx, c, at.String())
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
	if n := len(strings.Split(tag(t, address, digest.String()), `"digest"`)) - 1; n != 4 {
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
