// SPDX-License-Identifier: Apache-2.0

// Package credentialtest is the contract of a [credential.Provider] as a test. It owns what a
// provider must do; whoever implements one calls [Run] from a test of theirs, with a provider that
// serves the one binding of the fixture. It never looks behind the interface, and says nothing of
// how a provider keeps its secrets.
package credentialtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/credential"
)

// The one binding that the provider under test must serve, with field [FieldID] of value [Secret],
// in scope of [WorkspaceID] and [ExecutionID].
const (
	WorkspaceID = "ct-workspace"
	BindingID   = "ct-binding"
	ExecutionID = "ct-session"
	FieldID     = "token"
	Secret      = "ct-secret-7f1c9b"
)

// Payload is a payload of the fixture that expires at the given time.
func Payload(expires time.Time) []byte {
	b, err := json.Marshal(map[string]any{
		"version": credential.PayloadVersion, "expiresAtUnixMs": expires.UnixMilli(),
		"scope":  map[string]string{"workspaceId": WorkspaceID, "bindingId": BindingID, "executionId": ExecutionID},
		"fields": []map[string]any{{"fieldId": FieldID, "value": []byte(Secret)}},
	})
	if err != nil {
		panic(err) // of constants
	}
	return b
}

// Config is what is tested.
type Config struct {
	// New returns a provider of the fixture; it is closed by the test's own cleanup.
	New func(t *testing.T) credential.Provider
	// Broken returns a provider that fails while it handles [Secret]; nil when there is no way to
	// bring that about.
	Broken func(t *testing.T) credential.Provider
}

func request(attempt, binding string) credential.Request {
	return credential.Request{AttemptID: attempt, WorkspaceID: WorkspaceID, BindingID: binding, ExecutionID: ExecutionID, InvocationID: "ct-" + attempt, FieldIDs: []string{FieldID}}
}

// Run runs the contract.
func Run(t *testing.T, c Config) {
	t.Run("lease and dispose", func(t *testing.T) { testLease(t, c.New(t)) })
	t.Run("unknown binding", func(t *testing.T) { testUnknown(t, c.New(t)) })
	t.Run("another scope", func(t *testing.T) { testScope(t, c.New(t)) })
	t.Run("dispose again", func(t *testing.T) { testDisposeAgain(t, c.New(t)) })
	t.Run("ended context", func(t *testing.T) { testEnded(t, c.New(t)) })
	t.Run("buffers are the caller's", func(t *testing.T) { testBuffers(t, c.New(t)) })
	t.Run("concurrent attempts", func(t *testing.T) { testConcurrent(t, c.New(t)) })
	t.Run("failure says nothing", func(t *testing.T) {
		if c.Broken == nil {
			t.Skip("no broken provider was given")
		}
		testBroken(t, c.Broken(t))
	})
}

func mustLease(t *testing.T, p credential.Provider, attempt string) []byte {
	t.Helper()
	b, err := p.Lease(t.Context(), request(attempt, BindingID))
	if err != nil {
		t.Fatalf("lease: %v", err)
	}
	return b
}

func testLease(t *testing.T, p credential.Provider) {
	b := mustLease(t, p, "a1")
	if len(b) > credential.MaxPayloadBytes {
		t.Errorf("a payload of %d bytes", len(b))
	}
	if err := credential.CheckPayload(b, request("a1", BindingID), time.Now()); err != nil {
		t.Errorf("the payload is refused: %v", err)
	}
	if err := p.Dispose(t.Context(), request("a1", BindingID)); err != nil {
		t.Errorf("dispose: %v", err)
	}
}

func testUnknown(t *testing.T, p credential.Provider) {
	r := request("u1", "ct-unknown")
	b, err := p.Lease(t.Context(), r)
	if err == nil || len(b) != 0 {
		t.Errorf("an unknown binding gives %d bytes, error %v", len(b), err)
	}
	if err := p.Dispose(t.Context(), r); err != nil {
		t.Errorf("dispose of a lease that failed: %v", err)
	}
}

// testScope asks on behalf of others. What a provider gives them, if anything, must not be good for them:
// one that fills in whatever scope it is asked for gives every tenant's secret to every other.
func testScope(t *testing.T, p credential.Provider) {
	for what, change := range map[string]func(r *credential.Request){
		"workspace": func(r *credential.Request) { r.WorkspaceID = "ct-other" },
		"execution": func(r *credential.Request) { r.ExecutionID = "ct-other" },
	} {
		r := request("s-"+what, BindingID)
		change(&r)
		b, err := p.Lease(t.Context(), r)
		if err == nil && credential.CheckPayload(b, r, time.Now()) == nil {
			t.Errorf("another %s gets a payload that is good for it", what)
		}
		if err := p.Dispose(t.Context(), r); err != nil {
			t.Errorf("dispose for another %s: %v", what, err)
		}
	}
}

// testDisposeAgain tells of an end for a second time, and of one whose lease never came, as a worker
// may after it died.
func testDisposeAgain(t *testing.T, p credential.Provider) {
	mustLease(t, p, "t1")
	for _, attempt := range []string{"t1", "t1", "t-never"} {
		if err := p.Dispose(t.Context(), request(attempt, BindingID)); err != nil {
			t.Errorf("dispose of %s: %v", attempt, err)
		}
	}
}

func testEnded(t *testing.T, p credential.Provider) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := p.Lease(ctx, request("e1", BindingID))
	if err == nil || len(b) != 0 {
		t.Errorf("an ended context gives %d bytes, error %v", len(b), err)
	}
}

func testBuffers(t *testing.T, p credential.Provider) {
	one, two := mustLease(t, p, "b1"), mustLease(t, p, "b2")
	kept := bytes.Clone(two)
	clear(one[:cap(one)])
	if !bytes.Equal(two, kept) {
		t.Error("zeroing one payload changes another")
	}
	if three := mustLease(t, p, "b3"); credential.CheckPayload(three, request("b3", BindingID), time.Now()) != nil {
		t.Error("zeroing a payload changes what the provider gives next")
	}
}

func testConcurrent(t *testing.T, p credential.Provider) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			<-start
			r := request(fmt.Sprintf("c%d", i), BindingID)
			b, err := p.Lease(t.Context(), r)
			if err == nil {
				err = credential.CheckPayload(b, r, time.Now())
			}
			if err != nil {
				t.Errorf("attempt %d: %v", i, err)
			}
			if err := p.Dispose(t.Context(), r); err != nil {
				t.Errorf("dispose %d: %v", i, err)
			}
		})
	}
	close(start)
	wg.Wait()
}

func testBroken(t *testing.T, p credential.Provider) {
	_, err := p.Lease(t.Context(), request("f1", BindingID))
	if err == nil {
		t.Fatal("the broken provider does not fail")
	}
	if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, Secret) {
		t.Errorf("the error repeats the secret: %s", text)
	}
	if err := p.Dispose(t.Context(), request("f1", BindingID)); err != nil && strings.Contains(err.Error(), Secret) {
		t.Errorf("the error of dispose repeats the secret: %v", err)
	}
}
