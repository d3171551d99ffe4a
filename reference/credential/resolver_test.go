// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

const secret = "s3cr3t-canary-value"

var subject = Subject{WorkspaceID: "ws", ExecutionID: "session", InvocationID: "inv"}

// world is the provider, the store, the clock and the log of a test, and what happened, in order.
type world struct {
	mu    sync.Mutex
	calls []string
	rows  map[string]string
	now   time.Time
	log   bytes.Buffer

	given  [][]byte // payloads that left the provider
	lease  func(ctx context.Context, r Request) ([]byte, error)
	end    func(r Request) error
	broken error // of the store
	clock  error
	stored func(ctx context.Context, key string) error // the store's answer once a row is kept; nil for none
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, fmt.Sprintf(format, args...))
}

func (w *world) Put(ctx context.Context, bucket, key string, value []byte) error {
	w.note("put %s", key)
	if w.broken != nil {
		return w.broken
	}
	w.mu.Lock()
	w.rows[key] = string(value)
	w.mu.Unlock()
	if w.stored != nil {
		return w.stored(ctx, key)
	}
	return nil
}

func (w *world) Delete(_ context.Context, _, key string) error {
	w.note("delete %s", key)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.rows, key)
	return nil
}

func (w *world) Each(_ string, f func(string, []byte) error) error {
	for k, v := range w.rows {
		if err := f(k, []byte(v)); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) Lease(ctx context.Context, r Request) ([]byte, error) {
	w.note("lease %s", r.AttemptID)
	f := w.lease
	if f == nil {
		f = func(_ context.Context, r Request) ([]byte, error) { return w.payload(r, nil), nil }
	}
	b, err := f(ctx, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given = append(w.given, b)
	return b, err
}

func (w *world) Dispose(_ context.Context, r Request) error {
	w.note("dispose %s", r.AttemptID)
	if w.end != nil {
		return w.end(r)
	}
	return nil
}

// payload is a good one, unless change says otherwise.
func (w *world) payload(r Request, change func(*payloadFile)) []byte {
	p := payloadFile{Version: PayloadVersion, Scope: payloadScope{r.WorkspaceID, r.BindingID, r.ExecutionID}, ExpiresAtUnixMs: w.now.Add(time.Hour).UnixMilli()}
	for _, id := range r.FieldIDs {
		p.Fields = append(p.Fields, payloadField{id, []byte(secret + id)})
	}
	if change != nil {
		change(&p)
	}
	b, err := strictjson.Marshal(p)
	if err != nil {
		panic(err)
	}
	return b
}

type payloadFile struct {
	Version         string         `json:"version"`
	Scope           payloadScope   `json:"scope"`
	ExpiresAtUnixMs int64          `json:"expiresAtUnixMs"`
	Fields          []payloadField `json:"fields"`
}

type payloadField struct {
	FieldID string `json:"fieldId"`
	Value   []byte `json:"value"`
}

func (w *world) count(op string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if strings.HasPrefix(c, op+" ") {
			n++
		}
	}
	return n
}

func (w *world) boot(t *testing.T) *Resolver {
	t.Helper()
	r, err := New(Options{
		Bindings: []Binding{
			{BindingID: "b", ProviderID: "p", Category: "registry", Kind: "token", Fields: []string{"token", "user"}},
			{BindingID: "narrow", ProviderID: "p", Category: "registry", Kind: "token", Fields: []string{"token"}, Workspaces: []string{"other"}},
			{BindingID: "model", ProviderID: "p", Category: "model-provider", Kind: "token", Fields: []string{"token"}},
			{BindingID: "model-key", ProviderID: "p", Category: "service", Kind: "model-api-key", Fields: []string{"token"}},
		},
		Providers: map[string]Provider{"p": w}, Store: w,
		Now: func() (time.Time, error) { return w.now, w.clock },
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newWorld() *world {
	return &world{rows: map[string]string{}, now: time.UnixMilli(1_700_000_000_000)}
}

func ref(attempt string, names ...string) api.CredentialRef {
	r := api.CredentialRef{DeliveryAttemptID: attempt, ProviderID: "p", BindingID: "b", ExecutionID: "session"}
	if len(names) == 0 {
		names = []string{"TOKEN"}
	}
	for i, n := range names {
		r.Fields = append(r.Fields, api.CredentialField{Name: n, FieldID: []string{"token", "user", "x", "y"}[i]})
	}
	return r
}

func wantReason(t *testing.T, what string, err error, want Reason) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.SecretReferenceRejected || !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestMintRefusesBeforeAnythingHappens(t *testing.T) {
	w := newWorld()
	r := w.boot(t)
	change := func(f func(*api.CredentialRef)) []api.CredentialRef {
		c := ref("d")
		f(&c)
		return []api.CredentialRef{c}
	}
	minted, err := r.Mint([]api.CredentialRef{ref("d", "TOKEN", "USER")}, subject)
	if err != nil || len(minted) != 1 {
		t.Fatalf("the good one: %v", err)
	}
	for _, tt := range []struct {
		name string
		refs []api.CredentialRef
		want Reason
	}{
		{"none", nil, RefCount},
		{"17 fields", []api.CredentialRef{{Fields: make([]api.CredentialField, 17)}}, RefCount},
		{"17", make([]api.CredentialRef, 17), RefCount},
		{"no field", change(func(c *api.CredentialRef) { c.Fields = nil }), RefMalformed},
		{"attempt", change(func(c *api.CredentialRef) { c.DeliveryAttemptID = "a/b" }), RefMalformed},
		{"unknown binding", change(func(c *api.CredentialRef) { c.BindingID = "c" }), BindingUnknown},
		{"unknown provider", change(func(c *api.CredentialRef) { c.ProviderID = "q" }), ProviderMismatch},
		{"category of a model provider", change(func(c *api.CredentialRef) { c.BindingID = "model" }), ModelProvider},
		{"kind of a model provider", change(func(c *api.CredentialRef) { c.BindingID = "model-key" }), ModelProvider},
		{"other workspace", change(func(c *api.CredentialRef) { c.BindingID = "narrow" }), WorkspaceOutside},
		{"other execution", change(func(c *api.CredentialRef) { c.ExecutionID = "session-2" }), ExecutionOther},
		{"field outside", change(func(c *api.CredentialRef) { c.Fields[0].FieldID = "root" }), FieldOutside},
		{"field twice", change(func(c *api.CredentialRef) {
			c.Fields = append(c.Fields, api.CredentialField{Name: "B", FieldID: "token"})
		}), FieldOutside},
		{"reserved name", change(func(c *api.CredentialRef) { c.Fields[0].Name = "BASH_ENV" }), NameRefused},
		{"name with newline", change(func(c *api.CredentialRef) { c.Fields[0].Name = "A\nB" }), NameRefused},
		{"name twice", []api.CredentialRef{ref("d1", "A"), ref("d2", "A")}, NameRefused},
		{"attempt twice", []api.CredentialRef{ref("d1", "A"), ref("d1", "B")}, AttemptUsed},
	} {
		got, err := r.Mint(tt.refs, subject)
		wantReason(t, tt.name, err, tt.want)
		if got != nil {
			t.Errorf("%s: %d references besides the error", tt.name, len(got))
		}
	}
	var none *Resolver
	_, err = none.Mint([]api.CredentialRef{ref("d")}, subject)
	wantReason(t, "no resolver", err, NoProvider)
	if len(w.calls) != 0 {
		t.Errorf("minting did %q", w.calls)
	}
}

// lease mints and leases.
func lease(r *Resolver, ctx context.Context, refs ...api.CredentialRef) (*Lease, error) {
	m, err := r.Mint(refs, subject)
	if err != nil {
		return nil, err
	}
	return r.Lease(ctx, m)
}

func TestLeaseGivesOneFrame(t *testing.T) {
	w := newWorld()
	r := w.boot(t)
	l, err := lease(r, t.Context(), ref("d", "TOKEN", "USER"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(w.calls, ","), "put ws/d,lease d"; got != want {
		t.Errorf("calls are %s, want %s", got, want)
	}
	if !bytes.Equal(w.given[0], make([]byte, len(w.given[0]))) {
		t.Error("the payload is not zeroed")
	}
	held := l.fields[0].Value
	frame, err := l.Take()
	if err != nil {
		t.Fatal(err)
	}
	fields, err := DecodeFrame(frame)
	if err != nil || len(fields) != 2 || fields[0].Name != "TOKEN" || string(fields[0].Value) != secret+"token" || fields[1].Name != "USER" || string(fields[1].Value) != secret+"user" {
		t.Errorf("%d fields, %v", len(fields), err)
	}
	if !bytes.Equal(held, make([]byte, len(held))) {
		t.Error("a taken value is not zeroed")
	}
	_, err = l.Take()
	wantReason(t, "second take", err, LeaseSpent)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(l.Dispose)
	}
	wg.Wait()
	if w.count("dispose") != 1 || r.Outstanding() != 0 {
		t.Errorf("disposed %d times, %d outstanding", w.count("dispose"), r.Outstanding())
	}
	if frame.Wipe(); !bytes.Equal(frame[:cap(frame)], make([]byte, cap(frame))) {
		t.Error("the frame is not zeroed")
	}
}

func TestDisposedLeaseIsZeroedAndGivesNothing(t *testing.T) {
	w := newWorld()
	l, err := lease(w.boot(t), t.Context(), ref("d"))
	if err != nil {
		t.Fatal(err)
	}
	held := l.fields[0].Value
	l.Dispose()
	if !bytes.Equal(held[:cap(held)], make([]byte, cap(held))) {
		t.Error("a disposed value is not zeroed")
	}
	_, err = l.Take()
	wantReason(t, "take after dispose", err, LeaseSpent)
}

// Every fault at every step: each provider that was asked hears of the end once, and nothing of the
// secret is said anywhere.
func TestFaultsDisposeOnce(t *testing.T) {
	payload := func(f func(*payloadFile)) func(*world) {
		return func(w *world) {
			w.lease = func(_ context.Context, r Request) ([]byte, error) { return w.payload(r, f), nil }
		}
	}
	raw := func(text string) func(*world) {
		return func(w *world) {
			w.lease = func(context.Context, Request) ([]byte, error) { return []byte(text), nil }
		}
	}
	value := base64.StdEncoding.EncodeToString([]byte(secret))
	for _, tt := range []struct {
		name  string
		setup func(*world)
		want  Reason
		asked int
	}{
		{"provider fails with the secret in its message", func(w *world) {
			w.lease = func(context.Context, Request) ([]byte, error) { return nil, errors.New(secret) }
		}, ProviderFailed, 1},
		{"and with a payload besides", func(w *world) {
			w.lease = func(_ context.Context, r Request) ([]byte, error) { return w.payload(r, nil), errors.New(secret) }
		}, ProviderFailed, 1},
		{"provider panics with the secret", func(w *world) { w.lease = func(context.Context, Request) ([]byte, error) { panic(secret) } }, ProviderFailed, 1},
		{"dispose panics too", func(w *world) {
			w.lease = func(context.Context, Request) ([]byte, error) { panic(secret) }
			w.end = func(Request) error { panic(secret) }
		}, ProviderFailed, 1},
		{"dispose fails with the secret", func(w *world) {
			payload(func(p *payloadFile) { p.Version = secret })(w)
			w.end = func(Request) error { return errors.New(secret) }
		}, PayloadVersionUnknown, 1},
		{"other workspace", payload(func(p *payloadFile) { p.Scope.WorkspaceID = "other" }), PayloadScope, 1},
		{"other binding", payload(func(p *payloadFile) { p.Scope.BindingID = "other" }), PayloadScope, 1},
		{"other execution", payload(func(p *payloadFile) { p.Scope.ExecutionID = "other" }), PayloadScope, 1},
		{"expired by 1 s", payload(func(p *payloadFile) { p.ExpiresAtUnixMs = 1_700_000_000_000 - 1000 }), PayloadExpired, 1},
		{"expires now", payload(func(p *payloadFile) { p.ExpiresAtUnixMs = 1_700_000_000_000 }), PayloadExpired, 1},
		{"field missing", payload(func(p *payloadFile) { p.Fields = []payloadField{} }), PayloadFields, 1},
		{"field besides", payload(func(p *payloadFile) { p.Fields = append(p.Fields, payloadField{"x", []byte("x")}) }), PayloadFields, 1},
		{"another field", payload(func(p *payloadFile) { p.Fields[0].FieldID = "user" }), PayloadFields, 1},
		{"value of 64 KiB and 1", payload(func(p *payloadFile) { p.Fields[0].Value = make([]byte, MaxValueBytes+1) }), PayloadTooLarge, 1},
		{"payload beyond its bound", raw(strings.Repeat(" ", MaxPayloadBytes+1)), PayloadTooLarge, 1},
		{"no JSON", raw(secret), PayloadMalformed, 1},
		{"member besides", raw(`{"version":"hallmark.credential.v1","scope":{"workspaceId":"ws","bindingId":"b","executionId":"session"},"expiresAtUnixMs":1800000000000,"fields":[{"fieldId":"token","value":"` + value + `"}],"` + secret + `":1}`), PayloadMalformed, 1},
		{"value with a spare bit", raw(`{"version":"hallmark.credential.v1","scope":{"workspaceId":"ws","bindingId":"b","executionId":"session"},"expiresAtUnixMs":1800000000000,"fields":[{"fieldId":"token","value":"aW5="}]}`), PayloadMalformed, 1},
		{"value with an escape", raw(`{"version":"hallmark.credential.v1","scope":{"workspaceId":"ws","bindingId":"b","executionId":"session"},"expiresAtUnixMs":1800000000000,"fields":[{"fieldId":"token","value":"aW\u0034="}]}`), PayloadMalformed, 1},
		{"value no string", raw(`{"version":"hallmark.credential.v1","scope":{"workspaceId":"ws","bindingId":"b","executionId":"session"},"expiresAtUnixMs":1800000000000,"fields":[{"fieldId":"token","value":7}]}`), PayloadMalformed, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			tt.setup(w)
			r := w.boot(t)
			_, err := lease(r, t.Context(), ref("d"))
			wantReason(t, tt.name, err, tt.want)
			if w.count("lease") != tt.asked || w.count("dispose") != tt.asked || r.Outstanding() != 0 {
				t.Errorf("calls %q, %d outstanding", w.calls, r.Outstanding())
			}
			if text := fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err)) + w.log.String(); strings.Contains(text, secret) || strings.Contains(text, value) {
				t.Errorf("the secret is in %s", text)
			}
			for i, b := range w.given {
				if !bytes.Equal(b, make([]byte, len(b))) {
					t.Errorf("payload %d is not zeroed", i)
				}
			}
			w.lease = nil
			_, err = lease(r, t.Context(), ref("d"))
			wantReason(t, "the attempt again", err, AttemptUsed)
			if w.count("lease") != tt.asked {
				t.Error("a used attempt was asked for")
			}
		})
	}
}

func TestSecondOfTwoFails(t *testing.T) {
	w := newWorld()
	w.lease = func(_ context.Context, r Request) ([]byte, error) {
		if r.AttemptID == "d2" {
			return nil, ErrNoPayload
		}
		return w.payload(r, nil), nil
	}
	r := w.boot(t)
	_, err := lease(r, t.Context(), ref("d1", "A"), ref("d2", "B"), ref("d3", "C"))
	wantReason(t, "second fails", err, ProviderFailed)
	if got, want := strings.Join(w.calls, ","), "put ws/d1,put ws/d2,put ws/d3,lease d1,lease d2,dispose d1,put ws/d1,dispose d2,put ws/d2,put ws/d3"; got != want {
		t.Errorf("calls are %s, want %s", got, want)
	}
	// One field twice is not two fields.
	w.lease = func(_ context.Context, r Request) ([]byte, error) {
		return w.payload(r, func(p *payloadFile) { p.Fields[1].FieldID = p.Fields[0].FieldID }), nil
	}
	_, err = lease(r, t.Context(), ref("f1", "A", "B"))
	wantReason(t, "a field twice in the payload", err, PayloadFields)
	// Together they are larger than one frame.
	w.lease = func(_ context.Context, r Request) ([]byte, error) {
		return w.payload(r, func(p *payloadFile) { p.Fields[0].Value = make([]byte, MaxValueBytes/2+1) }), nil
	}
	_, err = lease(r, t.Context(), ref("e1", "A"), ref("e2", "B"))
	wantReason(t, "too large together", err, PayloadTooLarge)
	if r.Outstanding() != 0 {
		t.Errorf("%d outstanding", r.Outstanding())
	}
}

func TestContextThatEndsIsAFailureOfTheProvider(t *testing.T) {
	w := newWorld()
	w.lease = func(ctx context.Context, _ Request) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r := w.boot(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	_, err := lease(r, ctx, ref("d"))
	wantReason(t, "caller left", err, ProviderFailed)
	if w.count("dispose") != 1 {
		t.Errorf("calls %q", w.calls)
	}
}

func TestNothingIsAskedWithoutStoreOrClock(t *testing.T) {
	w := newWorld()
	r := w.boot(t)
	unavailable := func(what string, err error) {
		t.Helper()
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.Unavailable || w.count("lease") != 0 {
			t.Errorf("%s: %v, calls %q", what, err, w.calls)
		}
	}
	w.broken = errors.New("disk full")
	_, err := lease(r, t.Context(), ref("d"))
	unavailable("store", err)
	w.broken = nil
	_, err = lease(r, t.Context(), ref("d"))
	wantReason(t, "an attempt that may be stored", err, AttemptUsed)
	w.clock = errors.New("stepped")
	_, err = lease(r, t.Context(), ref("e"))
	unavailable("clock", err)
}

func TestClockThatMovesExpiresALease(t *testing.T) {
	w := newWorld()
	r := w.boot(t)
	for _, tt := range []struct {
		name string
		move time.Duration
		want Reason
	}{{"a moment before", time.Hour - time.Millisecond, ""}, {"at the end", time.Hour, PayloadExpired}, {"after", time.Hour + time.Second, PayloadExpired}} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := lease(r, t.Context(), ref("d-"+fmt.Sprint(tt.move.Milliseconds())))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Dispose()
			start := w.now
			defer func() { w.now = start }()
			w.now = w.now.Add(tt.move)
			if frame, err := l.Take(); tt.want != "" {
				wantReason(t, tt.name, err, tt.want)
			} else if err != nil || len(frame) == 0 {
				t.Error(err)
			}
		})
	}
	l, err := lease(r, t.Context(), ref("d-clock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Dispose()
	w.clock = errors.New("stepped")
	if _, err := l.Take(); err == nil {
		t.Error("a lease is taken without a clock")
	}
}

func TestAttemptsOutliveTheProcess(t *testing.T) {
	w := newWorld()
	l, err := lease(w.boot(t), t.Context(), ref("d"))
	if err != nil {
		t.Fatal(err)
	}
	l.Dispose()
	_, err = lease(w.boot(t), t.Context(), ref("d"))
	wantReason(t, "after a restart", err, AttemptUsed)
	// Another workspace's attempts are its own.
	r := w.boot(t)
	other := subject
	other.WorkspaceID = "ws2"
	m, err := r.Mint([]api.CredentialRef{ref("d")}, other)
	if err != nil {
		t.Fatal(err)
	}
	if l, err = r.Lease(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	l.Dispose()
	// A day later it is forgotten; until then a full memory refuses.
	r.attempts.limit = 2
	_, err = lease(r, t.Context(), ref("e"))
	wantReason(t, "full", err, AttemptsFull)
	w.now = w.now.Add(attemptsKept + time.Millisecond)
	if _, err := lease(r, t.Context(), ref("d")); err != nil {
		t.Errorf("a day later: %v", err)
	}
	if _, kept := w.rows["ws/d"]; !kept || len(w.rows) != 1 {
		t.Errorf("rows are %v", w.rows)
	}
}

// However old it is, an attempt that was not given back stays used and on record, over restarts too, until its provider
// has heard of its end; then it is forgotten at once.
func TestOpenAttemptIsNotForgotten(t *testing.T) {
	w := newWorld()
	told := 0
	w.end = func(Request) error { told++; return errors.New("not now") }
	first := w.boot(t)
	held, err := lease(first, t.Context(), ref("held"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := lease(first, t.Context(), ref("refused"))
	if err != nil {
		t.Fatal(err)
	}
	l.Dispose()
	for i := range 3 * maxForgotten { // others come and go
		w.now = w.now.Add(attemptsKept / maxForgotten)
		w.end = nil
		l, err := lease(first, t.Context(), ref(fmt.Sprint("other", i)))
		if err != nil {
			t.Fatal(err)
		}
		l.Dispose()
	}
	for name, r := range map[string]*Resolver{"this process": first, "the next": w.boot(t)} {
		for _, d := range []string{"held", "refused"} {
			_, err := lease(r, t.Context(), ref(d))
			wantReason(t, name+", "+d, err, AttemptUsed)
		}
		if len(r.attempts.used) > 3*maxForgotten || r.attempts.open["p"] != 2 {
			t.Errorf("%s remembers %d, open %v", name, len(r.attempts.used), r.attempts.open)
		}
	}
	held.Dispose()
	if _, kept := w.rows["ws/held"]; kept || first.attempts.used["ws/held"] != nil {
		t.Error("it is remembered after its end")
	}
	next := w.boot(t)
	next.Settle(t.Context())
	if told != 1 || next.attempts.open["p"] != 0 || w.boot(t).Outstanding() != 0 {
		t.Errorf("told %d times, open %v, %d outstanding", told, next.attempts.open, w.boot(t).Outstanding())
	}
}

// A provider that takes nothing back is not asked any more at its bound, and keeps no other from serving.
func TestLeasesThatAreNotGivenBackAreBounded(t *testing.T) {
	w := newWorld()
	w.end = func(Request) error { return errors.New("never") }
	r := w.boot(t)
	r.attempts.each = 2
	for _, d := range []string{"d1", "d2"} {
		l, err := lease(r, t.Context(), ref(d))
		if err != nil {
			t.Fatal(err)
		}
		l.Dispose()
	}
	before := w.count("lease")
	_, err := lease(r, t.Context(), ref("d3"))
	wantReason(t, "beyond the bound", err, LeasesOpen)
	if w.count("lease") != before || len(w.rows) != 2 {
		t.Errorf("calls %q, rows %q", w.calls, w.rows)
	}
	w.end = nil
	next := w.boot(t)
	next.attempts.each = 2
	next.Settle(t.Context())
	if _, err := lease(next, t.Context(), ref("d3")); err != nil {
		t.Errorf("after it has taken them back: %v", err)
	}
	// A store that fails leaves none counted.
	w.stored = func(context.Context, string) error { return errors.New("disk full") }
	failing := w.boot(t)
	_, _ = lease(failing, t.Context(), ref("e1", "A"), ref("e2", "B"))
	if n := failing.attempts.open["p"]; n != 1 {
		t.Errorf("%d counted as open, want that of d3", n)
	}
}

// A process that dies with a lease open leaves it on record, and the next one tells the provider, once,
// exactly what it was asked.
func TestLeaseOfADeadProcessIsGivenBack(t *testing.T) {
	w := newWorld()
	var asked, told []string
	w.lease = func(_ context.Context, r Request) ([]byte, error) {
		asked = append(asked, fmt.Sprint(r))
		return w.payload(r, nil), nil
	}
	w.end = func(r Request) error { told = append(told, fmt.Sprint(r)); return nil }
	done, err := lease(w.boot(t), t.Context(), ref("d0"))
	if err != nil {
		t.Fatal(err)
	}
	done.Dispose() // this one ends as it should
	if _, err := lease(w.boot(t), t.Context(), ref("d1", "A"), ref("d2", "B")); err != nil {
		t.Fatal(err)
	}
	asked, told = asked[1:], nil

	r := w.boot(t)
	if r.Outstanding() != 2 {
		t.Errorf("%d outstanding after the start", r.Outstanding())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.Settle(ended)
	if len(told) != 0 {
		t.Errorf("told %q after the end of the context", told)
	}
	r.Settle(t.Context())
	r.Settle(t.Context())
	slices.Sort(told)
	if !slices.Equal(told, asked) || r.Outstanding() != 0 {
		t.Errorf("asked %q, told %q, %d outstanding", asked, told, r.Outstanding())
	}
	told = nil
	next := w.boot(t)
	next.Settle(t.Context())
	if len(told) != 0 {
		t.Errorf("told again after another start: %q", told)
	}
	_, err = lease(next, t.Context(), ref("d1"))
	wantReason(t, "the attempt after all that", err, AttemptUsed)

	// Of a provider that is gone nobody can be told, and it is not tried for ever.
	if _, err := lease(w.boot(t), t.Context(), ref("e")); err != nil {
		t.Fatal(err)
	}
	r = w.boot(t)
	r.providers = map[string]Provider{}
	r.Settle(t.Context())
	if w.boot(t).Outstanding() != 0 || len(told) != 0 {
		t.Errorf("%d outstanding, told %q", r.Outstanding(), told)
	}
	var none *Resolver
	none.Settle(t.Context())
}

// A provider that cannot take a lease back hears of it after each start, once, until it has: whether this process
// or one that died had the lease.
func TestLeaseThatWasNotGivenBackStaysOpen(t *testing.T) {
	w := newWorld()
	failures := map[string]func() error{
		"fails":  func() error { return errors.New(secret) },
		"panics": func() error { panic(secret) },
	}
	for name, fail := range failures {
		w.end = func(Request) error { return fail() }
		l, err := lease(w.boot(t), t.Context(), ref(name))
		if err != nil {
			t.Fatal(err)
		}
		l.Dispose()
		l.Dispose()
		for range 2 { // starts
			r := w.boot(t)
			if r.Outstanding() != 1 {
				t.Errorf("%s: %d outstanding after a start", name, r.Outstanding())
			}
			r.Settle(t.Context())
			r.Settle(t.Context())
			if r.Outstanding() != 0 {
				t.Errorf("%s: %d outstanding though it was told", name, r.Outstanding())
			}
		}
		w.end = nil
		w.boot(t).Settle(t.Context())
		if w.boot(t).Settle(t.Context()); w.count("dispose") != 4 {
			t.Errorf("%s: told %d times, want 4", name, w.count("dispose"))
		}
		w.calls = nil
	}
	if strings.Contains(w.log.String(), secret) {
		t.Errorf("the secret is in the log: %s", w.log.String())
	}
}

// A caller that leaves while attempts are stored, and a store that keeps a row and fails all the same, leave no row
// open that no lease stands for.
func TestRowsWithoutALeaseAreClosed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(ctx context.Context, key string, leave func()) error
		asked int
	}{
		{"the caller leaves, the store obeys", func(ctx context.Context, _ string, leave func()) error { leave(); return ctx.Err() }, 2},
		{"the store keeps the first row and fails", func(_ context.Context, key string, _ func()) error {
			if key == "ws/d1" {
				return context.Canceled
			}
			return nil
		}, 0},
		{"the store keeps the second row and fails", func(_ context.Context, key string, _ func()) error {
			if key == "ws/d2" {
				return context.Canceled
			}
			return nil
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			first := map[string]bool{}
			w.stored = func(ctx context.Context, key string) error {
				if _, bounded := ctx.Deadline(); !bounded {
					t.Errorf("%s is stored without a bound", key)
				}
				if first[key] {
					return nil
				}
				first[key] = true
				return tt.store(ctx, key, cancel)
			}
			l, err := lease(w.boot(t), ctx, ref("d1", "A"), ref("d2", "B"))
			if l != nil {
				l.Dispose()
			} else if tt.asked > 0 {
				t.Error(err)
			}
			if w.count("lease") != tt.asked {
				t.Errorf("calls %q", w.calls)
			}
			if r := w.boot(t); r.Outstanding() != 0 {
				t.Errorf("%d open rows: %q", r.Outstanding(), w.rows)
			}
			_, err = lease(w.boot(t), t.Context(), ref("d1", "A"))
			wantReason(t, "the attempt again", err, AttemptUsed)
		})
	}
}

// The decoder must leave values where they are: what it copied would not be zeroed.
func TestValuesAreNotCopiedOutOfThePayload(t *testing.T) {
	w := newWorld()
	raw := w.payload(Request{WorkspaceID: "ws", BindingID: "b", ExecutionID: "session", FieldIDs: []string{"token"}}, nil)
	var doc payloadDoc
	if err := strictjson.Unmarshal(raw, &doc, payloadLimits); err != nil {
		t.Fatal(err)
	}
	lo, at := uintptr(unsafe.Pointer(&raw[0])), uintptr(unsafe.Pointer(&doc.Fields[0].Value[0]))
	if at < lo || at >= lo+uintptr(len(raw)) {
		t.Error("the decoder copies values")
	}
}
