// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Store keeps the delivery attempts; *state.Store is one. A nil error means committed.
type Store interface {
	Put(ctx context.Context, bucket, key string, value []byte) error
	Delete(ctx context.Context, bucket, key string) error
	Each(bucket string, f func(key string, value []byte) error) error
}

// bucketAttempts: workspace id "/" delivery attempt id -> Unix milliseconds of its use, and while its
// provider has not been told of the end, " " and an [openAttempt]. An identifier holds no slash.
const bucketAttempts = "delivery-attempts"

// Bounds of what is remembered. Nothing younger than attemptsKept is ever forgotten, nor what is open, however old:
// beyond maxAttempts the worker refuses, and beyond maxOpen the references to that provider, until it has taken leases back.
// So a provider that never does keeps no other from serving. All that runs at once has room: 1,024 commands of 16
// references.
const (
	attemptsKept = 24 * time.Hour
	maxAttempts  = 100_000
	maxOpen      = 20_000 // of one provider
	maxForgotten = 16     // per call, so that no caller pays for all of them
	// storeWithin bounds each write. Neither a caller that leaves nor the end of an invocation cuts one short:
	// whether the row is there would be anybody's guess.
	storeWithin = 10 * time.Second
)

// attempts makes each delivery attempt of a workspace single-use, over restarts.
type attempts struct {
	store       Store
	limit, each int // maxAttempts, maxOpen

	mu    sync.Mutex
	used  map[string]*attempt // by key
	order []string            // their keys, oldest first, without those that were too old to keep while they were open
	open  map[string]int      // by provider
}

// attempt is one that is remembered.
type attempt struct {
	ms       int64  // of its use
	provider string // who has to be told of its end; empty when nobody has
	late     bool   // out of the order: it goes with its end
}

// openAttempt is whom to tell of an attempt's end, and what.
type openAttempt struct {
	ProviderID string  `json:"providerId"`
	Request    Request `json:"request"`
}

// loadAttempts returns those that were made before, and which of them are open: the process that
// made them died before their providers were told.
func loadAttempts(s Store) (_ *attempts, open []openAttempt, err error) {
	a := &attempts{store: s, limit: maxAttempts, each: maxOpen, used: map[string]*attempt{}, open: map[string]int{}}
	err = s.Each(bucketAttempts, func(k string, v []byte) error {
		digits, rest, isOpen := bytes.Cut(v, []byte(" "))
		ms, err := strconv.ParseInt(string(digits), 10, 64)
		if err != nil {
			return errors.New("delivery attempt without a time")
		}
		var o openAttempt
		if isOpen {
			if err := strictjson.Unmarshal(rest, &o, strictjson.Default); err != nil {
				return fmt.Errorf("open delivery attempt: %w", err)
			}
			open = append(open, o)
		}
		a.addLocked(k, ms, o.ProviderID)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("load delivery attempts: %w", err)
	}
	slices.SortFunc(a.order, func(x, y string) int { return cmp.Compare(a.used[x].ms, a.used[y].ms) })
	return a, open, nil
}

// use consumes the attempts of refs, and leaves them open: all, or on a refusal none. A failing store has
// consumed them all the same, since nobody knows what it kept; none stays open then, as far as it can be written,
// since no provider is asked.
func (a *attempts) use(ctx context.Context, refs []Reference, now time.Time) error {
	ctx = context.WithoutCancel(ctx)
	old, err := a.claim(refs, now.UnixMilli())
	if err != nil {
		return err
	}
	for _, k := range old { // first, since one of them may be used anew
		if a.delete(ctx, k) != nil {
			break // it comes up again after the next start
		}
	}
	for i, r := range refs {
		text, err := strictjson.Marshal(openAttempt{r.binding.ProviderID, r.request()})
		if err == nil {
			err = a.put(ctx, r.request().attemptKey(), append(strconv.AppendInt(nil, now.UnixMilli(), 10), " "+string(text)...))
		}
		if err == nil {
			continue
		}
		for _, r := range refs[:i+1] { // the last may be there in spite of the error
			err = errors.Join(err, a.close(ctx, r.request()))
		}
		for _, r := range refs[i+1:] { // of these there is no row
			a.end(r.request().attemptKey())
		}
		return api.E(api.Unavailable, fmt.Errorf("store delivery attempt: %w", err))
	}
	return nil
}

// close marks that nobody has to be told of the end of q any more.
func (a *attempts) close(ctx context.Context, q Request) error {
	was, known := a.end(q.attemptKey())
	switch {
	case !known:
		return nil // forgotten meanwhile
	case was.late:
		return a.delete(ctx, q.attemptKey())
	}
	return a.put(ctx, q.attemptKey(), strconv.AppendInt(nil, was.ms, 10))
}

func (a *attempts) put(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	return a.store.Put(ctx, bucketAttempts, key, value)
}

func (a *attempts) delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	return a.store.Delete(ctx, bucketAttempts, key)
}

// end says that nobody has to be told of the end of an attempt any more, and what it was before. One that has
// been kept for that alone is forgotten.
func (a *attempts) end(key string) (was attempt, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, known := a.used[key]
	if !known {
		return attempt{}, false
	}
	was = *now
	if was.provider != "" {
		if a.open[was.provider]--; a.open[was.provider] == 0 {
			delete(a.open, was.provider)
		}
	}
	now.provider = ""
	if was.late {
		delete(a.used, key)
	}
	return was, true
}

// addLocked remembers a new one.
func (a *attempts) addLocked(key string, ms int64, provider string) {
	a.used[key] = &attempt{ms: ms, provider: provider}
	a.order = append(a.order, key)
	if provider != "" {
		a.open[provider]++
	}
}

// claim remembers the attempts of refs as open, all or none, and returns which old ones it has forgotten.
func (a *attempts) claim(refs []Reference, now int64) (old []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.order) > 0 && len(old) < maxForgotten {
		key := a.order[0]
		first := a.used[key]
		if now-first.ms <= attemptsKept.Milliseconds() {
			break
		}
		a.order = a.order[1:]
		if first.provider != "" {
			first.late = true
			continue
		}
		old = append(old, key)
		delete(a.used, key)
	}
	asked := map[string]int{}
	for _, r := range refs {
		if a.used[r.request().attemptKey()] != nil {
			return old, reject(AttemptUsed)
		}
		provider := r.binding.ProviderID
		if asked[provider]++; a.open[provider]+asked[provider] > a.each {
			return old, reject(LeasesOpen)
		}
	}
	if len(a.used)+len(refs) > a.limit {
		return old, reject(AttemptsFull)
	}
	for _, r := range refs {
		a.addLocked(r.request().attemptKey(), now, r.binding.ProviderID)
	}
	return old, nil
}

func (q Request) attemptKey() string { return q.WorkspaceID + "/" + q.AttemptID }
