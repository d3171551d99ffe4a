// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Lease holds the secrets of one invocation, for one use.
type Lease struct {
	resolver *Resolver

	mu       sync.Mutex
	parts    []part
	unasked  []Request // in the order of asking
	expires  time.Time // the earliest
	fields   []Field
	over     bool // taken or disposed
	disposed bool
}

// part is one call of a provider that has begun.
type part struct {
	provider Provider
	request  Request
}

// add asks for one reference. The part is noted first, so that it is disposed however the call ends.
func (l *Lease) add(ctx context.Context, ref Reference) Reason {
	r := l.resolver
	p := part{r.providers[ref.binding.ProviderID], ref.request()}
	l.mu.Lock()
	l.parts, l.unasked = append(l.parts, p), l.unasked[1:]
	l.mu.Unlock()
	r.leased.Add(1)
	raw, failure := r.ask(ctx, p.provider, p.request)
	defer clear(raw)
	if failure != "" {
		r.log.WarnContext(ctx, "credential provider failed", "provider", ref.binding.ProviderID, "binding", ref.binding.BindingID, "failure", failure)
		return ProviderFailed
	}
	now, err := r.now() // again: the provider may have taken its time
	if err != nil {
		return ProviderFailed
	}
	values, expires, reason := judge(raw, ref, now)
	if reason != "" {
		return reason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expires.IsZero() || expires.Before(l.expires) {
		l.expires = expires
	}
	for _, f := range ref.fields {
		l.fields = append(l.fields, Field{Name: f.Name, Value: values[f.FieldID]})
	}
	if checkFields(l.fields) != nil { // several payloads are too large together
		return PayloadTooLarge
	}
	return ""
}

// Take returns the frame, once, and zeroes the values of the lease. The frame is the caller's, who
// zeroes it. A lease that was taken or disposed, or has expired by now, gives nothing.
func (l *Lease) Take() (Value, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil, reject(LeaseSpent)
	}
	l.over = true
	defer l.wipeLocked()
	now, err := l.resolver.now()
	if err != nil {
		return nil, api.E(api.Unavailable, fmt.Errorf("read clock: %w", err))
	}
	if !now.Before(l.expires) {
		return nil, reject(PayloadExpired)
	}
	frame, err := EncodeFrame(l.fields)
	if err != nil {
		return nil, reject(PayloadTooLarge)
	}
	return frame, nil
}

// Dispose zeroes what the lease holds and tells every provider that was asked, each once. Any
// number of calls is one. It waits for the providers, for each as long as for any call of it.
func (l *Lease) Dispose() {
	l.mu.Lock()
	if l.disposed {
		l.mu.Unlock()
		return
	}
	l.disposed, l.over = true, true
	l.wipeLocked()
	parts, unasked := l.parts, l.unasked
	l.mu.Unlock()
	for _, p := range parts {
		l.resolver.release(p, providerBudget)
	}
	for _, q := range unasked {
		l.resolver.close(q)
	}
}

func (l *Lease) wipeLocked() {
	for _, f := range l.fields {
		f.Value.Wipe()
	}
	l.fields = nil
}

// settleBudget bounds one provider's call of [Resolver.Settle]: the end of a worker waits for the one under way.
const settleBudget = 10 * time.Second

// release tells one provider, and when that has heard it, makes durable that it has. A failure is logged and
// not repeated by this process: once is the promise. The attempt stays open then, as when this process
// dies in between: the next one tells the provider again, so that nothing stays leased for good. The context is of
// its own: what ended the invocation must not keep the provider from hearing of it.
func (r *Resolver) release(p part, within time.Duration) {
	r.disposed.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	failure := ""
	func() {
		defer func() {
			if recover() != nil {
				failure = "the provider panicked"
			}
		}()
		if err := p.provider.Dispose(ctx, p.request); err != nil {
			failure = failureOf(err)
		}
	}()
	if failure != "" {
		r.log.Warn("credential lease not given back; its provider is told again after the next start", "binding", p.request.BindingID, "attempt", p.request.AttemptID, "failure", failure)
		return
	}
	r.close(p.request)
}

// close makes durable that nobody has to be told of the end of q.
func (r *Resolver) close(q Request) {
	if err := r.attempts.close(context.Background(), q); err != nil {
		r.log.Warn("the end of a delivery attempt is not stored; its provider may be told again after the next start", "binding", q.BindingID, "attempt", q.AttemptID, "err", err)
	}
}

// Settle tells the providers of the attempts that an earlier process, which died, has left open. Call
// it once, when nothing of that process runs any more. It waits for the providers, each within a bound
// of its own, and ends early with ctx: what is left then is told after the next start.
func (r *Resolver) Settle(ctx context.Context) {
	if r == nil {
		return
	}
	for _, o := range r.left {
		if ctx.Err() != nil {
			return
		}
		p := part{r.providers[o.ProviderID], o.Request}
		if p.provider == nil {
			r.log.Warn("an open delivery attempt is of a provider that is not configured any more", "provider", o.ProviderID, "binding", o.Request.BindingID, "attempt", o.Request.AttemptID)
			r.disposed.Add(1)
			r.close(p.request)
			continue
		}
		r.log.Info("credential lease of an earlier process given back", "binding", o.Request.BindingID, "attempt", o.Request.AttemptID)
		r.release(p, settleBudget)
	}
	r.left = nil
}

// Format implements [fmt.Formatter], for every verb.
func (*Lease) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue implements [slog.LogValuer].
func (*Lease) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON implements [json.Marshaler].
func (*Lease) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
