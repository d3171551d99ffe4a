// SPDX-License-Identifier: Apache-2.0

// Package registrytest gives tests a registry in a process of its own, on loopback, and evidence of an
// image that is in it. Only tests import it.
package registrytest

import (
	"bufio"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/registry"
)

// variable in the environment makes a test binary the registry of that kind.
const variable = "HALLMARK_TEST_REGISTRY"

// Main is the TestMain of a package that starts registries: handler makes one of a kind.
func Main(m *testing.M, handler func(kind string) http.Handler) {
	if kind := os.Getenv(variable); kind != "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(l.Addr())
		log.Fatal((&http.Server{Handler: handler(kind), ReadHeaderTimeout: time.Minute}).Serve(l))
	}
	os.Exit(m.Run())
}

// Start runs a registry of a kind that the package's [Main] knows, until the test ends, and returns its address.
func Start(t *testing.T, kind string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+kind)
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

// Plain reaches such a registry.
var Plain = registry.Config{PlainHTTP: true, Client: http.DefaultClient}

// World is a bundle whose first image is in the registry at address, and the reference of that image.
func World(t *testing.T, address string) (*evidencetest.World, *evidence.Bundle, string) {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	d, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	at, err := name.NewDigest(address+"/app@"+d.String(), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(at, image); err != nil {
		t.Fatal(err)
	}
	w.Statement.Predicate.Images[0].ManifestDigest = d.String()
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	return w, b, at.String()
}
