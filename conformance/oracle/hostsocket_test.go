// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestHostSocketSeesWhoConnects(t *testing.T) {
	for _, namespace := range []string{"", "/proc/self/ns/net"} {
		name := "hallmark-test-" + rand.Text()
		h, err := ListenAbstract(namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		if n := h.Came(); n != 0 {
			t.Errorf("%d came before anybody did", n)
		}
		c, err := net.Dial("unix", "@"+name)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		for end := time.Now().Add(5 * time.Second); h.Came() == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := h.Came(); n != 1 {
			t.Errorf("one connection is counted as %d", n)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if _, err := net.Dial("unix", "@"+name); err == nil {
			t.Error("the closed listener takes connections")
		}
	}
}

func TestSocketsAtFindsPlanted(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "hl-sock-") // sun_path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"s", "a/s", "a/b/s"} {
		l, err := net.Listen("unix", filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	for _, tt := range []struct {
		path  string
		depth int
		want  int
	}{{"", 0, 0}, {"", 1, 1}, {"", 2, 2}, {"", 9, 3}, {"s", 1, 1}, {"gone", 1, 0}} {
		got, err := SocketsAt(filepath.Join(dir, tt.path), tt.depth)
		if err != nil || len(got) != tt.want {
			t.Errorf("%q to depth %d: %q, %v", tt.path, tt.depth, got, err)
		}
	}
}
