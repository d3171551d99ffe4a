// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Options of [New]. All are required.
type Options struct {
	Bindings  []Binding
	Providers map[string]Provider
	Store     Store
	// Now is the worker's one clock; when it fails, nothing is leased.
	Now func() (time.Time, error)
	Log *slog.Logger
}

// Resolver is safe for concurrent use. A nil Resolver refuses every reference.
type Resolver struct {
	bindings  map[string]Binding
	providers map[string]Provider
	attempts  *attempts
	left      []openAttempt // by an earlier process; for Settle
	now       func() (time.Time, error)
	log       *slog.Logger

	leased, disposed atomic.Int64
}

// New checks o and loads the delivery attempts that were made before. Call [Resolver.Settle] for those of
// them that are still open.
func New(o Options) (*Resolver, error) {
	if len(o.Bindings) == 0 || len(o.Providers) == 0 || o.Store == nil || o.Now == nil || o.Log == nil {
		return nil, errors.New("credential: a part is missing")
	}
	r := &Resolver{bindings: map[string]Binding{}, providers: o.Providers, now: o.Now, log: o.Log}
	for _, b := range o.Bindings {
		if o.Providers[b.ProviderID] == nil {
			return nil, fmt.Errorf("credential: binding %s has no provider", b.BindingID)
		}
		r.bindings[b.BindingID] = b
	}
	var err error
	r.attempts, r.left, err = loadAttempts(o.Store)
	r.leased.Add(int64(len(r.left)))
	return r, err
}

// Outstanding is how many asked providers have not been told of the end yet. It is 0 whenever no
// lease is held.
func (r *Resolver) Outstanding() int64 { return r.leased.Load() - r.disposed.Load() }

// Lease makes the attempts durable, then asks each provider once and judges its payload. The
// caller owns the lease and disposes it; on an error it has been disposed. Errors are *[api.Error]:
// SECRET_REFERENCE_REJECTED with a [Reason], or UNAVAILABLE when the clock or the store failed,
// before any provider was asked.
func (r *Resolver) Lease(ctx context.Context, refs []Reference) (_ *Lease, err error) {
	if r == nil || len(refs) == 0 {
		return nil, reject(NoProvider)
	}
	now, err := r.now()
	if err != nil {
		return nil, api.E(api.Unavailable, fmt.Errorf("read clock: %w", err))
	}
	if err := r.attempts.use(ctx, refs, now); err != nil {
		return nil, err
	}
	l := &Lease{resolver: r}
	for _, ref := range refs {
		l.unasked = append(l.unasked, ref.request())
	}
	defer func() {
		if err != nil { // also when a panic is on its way, since err is set first
			l.Dispose()
		}
	}()
	err = reject(ProviderFailed) // stands if what follows panics
	for _, ref := range refs {
		if reason := l.add(ctx, ref); reason != "" {
			r.log.WarnContext(ctx, "credential reference rejected", "binding", ref.binding.BindingID, "attempt", ref.attempt, "reason", string(reason))
			return nil, reject(reason)
		}
	}
	return l, nil
}

// ask calls a provider within its budget. A panic is a failure; neither its value nor an error's
// text goes any further.
func (r *Resolver) ask(ctx context.Context, p Provider, q Request) (raw []byte, failure string) {
	ctx, cancel := context.WithTimeout(ctx, providerBudget)
	defer cancel()
	defer func() {
		if recover() != nil {
			raw, failure = nil, "the provider panicked"
		}
	}()
	raw, err := p.Lease(ctx, q)
	if err != nil {
		clear(raw)
		return nil, failureOf(err)
	}
	return raw, ""
}
