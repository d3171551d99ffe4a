// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// sh runs a script of the tenant's.
func (s *site) sh(ctx context.Context, ws, sb, id, script string, timeout time.Duration) (api.ExecResult, error) {
	return s.client.Exec(ctx, ws, sb, api.ExecRequest{
		InvocationID: id, Argv: []string{"sh", "-c", script}, TimeoutMs: timeout.Milliseconds(), MaxOutputBytes: 1 << 16,
	})
}

func spell(c api.ChangeEvent) string {
	text := c.Type + " " + c.Path + string(c.PathBytes)
	if from := c.From + string(c.FromBytes); from != "" {
		text += " from " + from
	}
	return text
}

// TestEventsOnRunsc: what a tenant does in its sandbox is told in its order, with what the API
// does between; and the stream ends with the sandbox.
func TestEventsOnRunsc(t *testing.T) {
	s := newSite(t)
	p := s.start()
	sb := s.create("ws").SandboxID
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := s.client.Events(ctx, "ws", sb)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	run := func(id, script string) {
		t.Helper()
		if res, err := s.sh(ctx, "ws", sb, id, script, 20*time.Second); err != nil || res.ExitCode == nil || *res.ExitCode != 0 {
			t.Fatalf("%s: %+v, %v, %s", script, res, err, res.Stderr)
		}
	}
	changes, stop := iter.Pull2(stream.All())
	defer stop()
	// in reads changes until those in order have come, in that order, whatever is between.
	in := func(order ...string) {
		t.Helper()
		for at, got := 0, []string(nil); at < len(order); {
			change, err, _ := changes()
			if err != nil {
				t.Fatalf("%q does not come in order: %v; got %q", order[at], err, got)
			}
			got = append(got, spell(change))
			if got[len(got)-1] == order[at] {
				at++
			}
		}
	}
	// What is watched by now has all its history told; a new directory what is in it.
	run("i1", `mkdir -p a/b/c`)
	in("created a", "created a/b", "created a/b/c")
	run("i2", `echo x > a/b/c/f && ln -s /etc a/link && mv a/b d && echo y >> d/c/f && mv d/c/f d/g && rm d/g && rmdir d/c`)
	in("created a/b/c/f", "created a/link", "moved d from a/b", "modified d/c/f", "moved d/g from d/c/f", "removed d/g", "removed d/c")
	if _, err := s.client.Write(ctx, "ws", sb, "api", []byte("x"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	run("i3", `mkdir "$(printf 'odd\n\377')" && rm -r a && touch end`)
	in("created api", "created odd\n\xff", "removed a/link", "removed a", "created end")

	stream, err = s.client.Events(ctx, "ws", sb)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := s.client.Dispose(ctx, "ws", sb); err != nil {
		t.Fatal(err)
	}
	for _, err := range stream.All() {
		if err != nil {
			codeIs(t, err, api.SandboxDisposed)
		}
	}
	s.stop(p)
}

// TestStormBesideANeighbour: a tenant's storm with as many streams as it can have. All goes on; the figures
// of a neighbour's file operations are logged, not judged: they are the machine's.
func TestStormBesideANeighbour(t *testing.T) {
	s := newSite(t)
	p := s.start()
	loud, quiet := s.create("loud").SandboxID, s.create("quiet").SandboxID
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	measure := func(name string) {
		t.Helper()
		var took []time.Duration
		for i := range 100 {
			began := time.Now()
			path := fmt.Sprintf("d%d", i%10)
			if _, err := s.client.FS(ctx, "quiet", quiet, api.FSRequest{Op: api.FSMkdir, Path: path}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.client.FS(ctx, "quiet", quiet, api.FSRequest{Op: api.FSRemove, Path: path}); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("%s: mkdir and remove of a neighbour: p50 %v, p99 %v", name, took[50], took[99])
	}
	const storm = `i=0; while :; do mkdir -p s/$i/a/b; : > s/$i/a/f; mv s/$i t$i; rm -r t$i; i=$((i+1)); done`
	measure("quiet")
	during := func(id, name string, streams int) {
		t.Helper()
		life, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		var changes, overflows atomic.Int64
		for range streams {
			stream, err := s.client.Events(life, "loud", loud)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for change, err := range stream.All() {
					if err != nil {
						if life.Err() == nil {
							t.Errorf("a stream ended in the storm: %v", err)
						}
						return
					}
					changes.Add(1)
					if change.Type == api.ChangeOverflow {
						overflows.Add(1)
					}
				}
			})
		}
		if streams > 0 {
			_, err := s.client.Events(life, "loud", loud)
			codeIs(t, err, api.ExecConcurrencyExhausted)
		}
		wg.Go(func() { _, _ = s.sh(life, "loud", loud, id, storm, 5*time.Minute) })
		for deadline := time.Now().Add(30 * time.Second); streams > 0 && changes.Load() < 100; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the storm is not seen")
			}
		}
		measure(name)
		t.Logf("%s: %d changes, %d overflows", name, changes.Load(), overflows.Load())
		end()
		wg.Wait()
	}
	during("i1", "storm", 0)
	during("i2", "storm and four streams", 4)
	s.stop(p)
}
