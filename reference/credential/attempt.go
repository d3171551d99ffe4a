// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
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

// Bounds of what is remembered. Nothing younger than attemptsKept is ever forgotten: beyond
// maxAttempts the worker refuses.
const (
	attemptsKept = 24 * time.Hour
	maxAttempts  = 100_000
	maxForgotten = 16 // per call, so that no caller pays for all of them
	// storeWithin bounds each write. Neither a caller that leaves nor the end of an invocation cuts one short:
	// whether the row is there would be anybody's guess.
	storeWithin = 10 * time.Second
)

// attempts makes each delivery attempt of a workspace single-use, over restarts.
type attempts struct {
	store Store
	limit int

	mu    sync.Mutex
	used  map[string]bool
	order []attempt // oldest first
}

type attempt struct {
	key string
	ms  int64
}

// openAttempt is whom to tell of an attempt's end, and what.
type openAttempt struct {
	ProviderID string  `json:"providerId"`
	Request    Request `json:"request"`
}

// loadAttempts returns those that were made before, and which of them are open: the process that
// made them died before their providers were told.
func loadAttempts(s Store) (_ *attempts, open []openAttempt, err error) {
	a := &attempts{store: s, limit: maxAttempts, used: map[string]bool{}}
	err = s.Each(bucketAttempts, func(k string, v []byte) error {
		digits, rest, isOpen := bytes.Cut(v, []byte(" "))
		ms, err := strconv.ParseInt(string(digits), 10, 64)
		if err != nil {
			return errors.New("delivery attempt without a time")
		}
		if isOpen {
			var o openAttempt
			if err := strictjson.Unmarshal(rest, &o, strictjson.Default); err != nil {
				return fmt.Errorf("open delivery attempt: %w", err)
			}
			open = append(open, o)
		}
		a.used[k] = true
		a.order = append(a.order, attempt{k, ms})
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("load delivery attempts: %w", err)
	}
	slices.SortFunc(a.order, func(x, y attempt) int { return int(min(max(x.ms-y.ms, -1), 1)) })
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
		return api.E(api.Unavailable, fmt.Errorf("store delivery attempt: %w", err))
	}
	return nil
}

// close marks that nobody has to be told of the end of q any more.
func (a *attempts) close(ctx context.Context, q Request) error {
	ms, known := a.usedAt(q.attemptKey())
	if !known {
		return nil // forgotten meanwhile
	}
	return a.put(ctx, q.attemptKey(), strconv.AppendInt(nil, ms, 10))
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

func (a *attempts) usedAt(key string) (ms int64, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range slices.Backward(a.order) { // the newest are asked for
		if o.key == key {
			return o.ms, true
		}
	}
	return 0, false
}

func (a *attempts) claim(refs []Reference, now int64) (old []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.order) > 0 && len(old) < maxForgotten && now-a.order[0].ms > attemptsKept.Milliseconds() {
		old = append(old, a.order[0].key)
		delete(a.used, a.order[0].key)
		a.order = a.order[1:]
	}
	for _, r := range refs {
		if a.used[r.request().attemptKey()] {
			return old, reject(AttemptUsed)
		}
	}
	if len(a.used)+len(refs) > a.limit {
		return old, reject(AttemptsFull)
	}
	for _, r := range refs {
		a.used[r.request().attemptKey()] = true
		a.order = append(a.order, attempt{r.request().attemptKey(), now})
	}
	return old, nil
}

func (q Request) attemptKey() string { return q.WorkspaceID + "/" + q.AttemptID }
