// SPDX-License-Identifier: Apache-2.0

package evidencecmd_test

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/evidencecmd"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// run executes a command line in this process and returns what it prints, and its exit status.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	root := &cobra.Command{Use: "hallmark", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(evidencecmd.New(func() evidence.Catalogue { return synthetic().Catalogue }, []string{"quota"}, nil)...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	err := root.Execute()
	var typed *exit.Error
	switch {
	case err == nil:
		return out.String(), exit.OK
	case errors.As(err, &typed):
		return typed.Error(), typed.Status
	}
	return err.Error(), exit.Failed
}

// What is pushed beside an image, and by a tag, comes back as it was.
func TestPushAndPullCommands(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s := httptest.NewServer(ggcr.New(ggcr.WithReferrersSupport(true), ggcr.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	address := strings.TrimPrefix(s.URL, "http://")
	at := push(t, address)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	w := synthetic()
	w.Statement.Predicate.Images[0].ManifestDigest = at[strings.Index(at, "@")+1:]
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(in("bundle")); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(in(name), evidence.EvidenceFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := func(status int, args ...string) string {
		t.Helper()
		out, got := run(t, append([]string{"evidence"}, args...)...)
		if got != status {
			t.Fatalf("%q: status %d, want %d: %s", args, got, status, out)
		}
		return out
	}
	out := want(exit.OK, "push", "--plain-http", "--bundle", in("bundle"), "--to", address+"/evidence:v1", "--image", at)
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 2 {
		t.Errorf("push prints %q", out)
	}
	want(exit.OK, "pull", "--plain-http", "--from", address+"/evidence:v1", "--out", in("tagged"))
	if file("tagged") != file("bundle") {
		t.Error("pulled by tag: another bundle")
	}
	out = want(exit.OK, "pull", "--plain-http", "--image", at, "--out", in("of-image"))
	folder, err := filepath.Rel(dir, strings.TrimSpace(out))
	if err != nil || file(folder) != file("bundle") {
		t.Errorf("pulled by image: another bundle in %q, %v", out, err)
	}
	want(exit.Failed, "pull", "--plain-http", "--from", address+"/evidence:v1", "--out", in("tagged")) // not empty
	want(exit.Failed, "pull", "--plain-http", "--from", address+"/evidence:none", "--out", in("none"))
	want(exit.Failed, "pull", "--from", address+"/evidence:v1", "--image", at, "--out", in("none"))
	want(exit.Failed, "push", "--plain-http", "--bundle", in("bundle"))
	want(exit.Negative, "push", "--plain-http", "--bundle", in("bundle"), "--image", push(t, address))
	want(exit.Negative, "pull", "--plain-http", "--from", at, "--out", in("none")) // the image is no evidence
	if _, err := os.Stat(in("none")); !os.IsNotExist(err) {
		t.Errorf("something was written: %v", err)
	}
}

// push stores an image and returns its reference.
func push(t *testing.T, address string) string {
	t.Helper()
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
	return at.String()
}
