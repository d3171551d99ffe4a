// SPDX-License-Identifier: Apache-2.0

package pt

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// PT03 fills the store of used capabilities.
var PT03 = conformance.Case{
	ID: "PT-03", Revision: 1, Title: "Nonce store pressure",
	Requirement: "The store of used capabilities is bounded, for each workspace and in all; full, it refuses with its own code and forgets nothing that lives. Requests that nobody signed take no room in it.",
	Threat:      "A flood pushes a used capability out of the store, and it is taken again; or a flood by a stranger, or by one tenant, locks everybody out.",
	Attack:      "Against a second process of the same worker, whose store the suite bounds to 1,000 entries and 300 of one workspace: as many requests without a valid signature, each with another id, as fit in 3 s; then signed requests of one workspace beyond its share, and of others until the store is full; the first ones are sent again each time; then everything expires.",
	Witness:     "Requests without a valid signature (2,000); refusals for a full share (20) and for a full store (20); used capabilities that were sent again while the store was under pressure (40), inside their lifetime.",
	Oracle:      "Status and code of every answer: how many fresh capabilities are taken before the first refusal is the room that the store had.",
	Precedent:   "nucleus#2375, Truxify#15849",
	Tier:        conformance.Full, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartPeers},
	Oracles:  []conformance.Oracle{conformance.OracleWire},
	Kills: []conformance.Kill{
		{Mutant: "m21", Reason: "evicted-reopened"}, {Mutant: "m47", Reason: "evicted-reopened"}, {Mutant: "m52", Reason: "share-unbounded"}, {Mutant: "m101", Reason: "unsigned-consumed"},
	},
	Run: runPT03,
}

// Bounds of the store under pressure and of the pressure on it.
const (
	storeNonces = 1000
	shareNonces = 300
	ownNonces   = 10 // at most so many are of the health requests that the suite itself makes
	paceNonces  = 50 // taken to learn the pace; they stay
	probes      = 20 // requests beyond a bound, and requests sent again
	floodConns  = 16
	floodSize   = 100_000
	floodTime   = 3 * time.Second
)

// pressure is one run of PT-03.
type pressure struct {
	t        *conformance.T
	peer     target.Peer
	lifetime time.Duration // of the capabilities that fill the store
	used     []wire.Request
	first    time.Time // when the first of used was minted
}

// ask is a request that costs a nonce and does nothing: there is no such sandbox.
func ask(workspace string) target.RawRequest {
	id := "sb-" + strings.Repeat("0", 32)
	return target.RawRequest{Op: "get", Method: "GET", Target: "/v1/sandboxes/" + id, WorkspaceID: workspace, SandboxID: id}
}

func runPT03(ctx context.Context, t *conformance.T) error {
	// Arrange.
	peer, err := t.Target().Peers.Start(ctx, target.PeerSpec{Nonces: storeNonces, NoncesPerWorkspace: shareNonces})
	if err != nil {
		return err
	}
	if all, share, err := peer.NonceLimits(ctx); err != nil || all != storeNonces || share != shareNonces {
		return fmt.Errorf("the second worker reports bounds of %d and %d: %w", all, share, err)
	}
	t.NeedWitness("unsigned", 2*storeNonces)
	t.NeedWitness("share-full", probes)
	t.NeedWitness("store-full", probes)
	t.NeedWitness("sent-again", 2*probes)
	p := &pressure{t: t, peer: peer}

	// Attack and verdict, step by step.
	if err := p.unsigned(ctx); err != nil {
		return err
	}
	if err := p.pace(ctx); err != nil {
		return err
	}
	if err := p.share(ctx); err != nil {
		return err
	}
	if err := p.store(ctx); err != nil {
		return err
	}
	if err := p.expiry(ctx); err != nil {
		return err
	}
	return peer.Close()
}

// unsigned floods with what no key has signed.
func (p *pressure) unsigned(ctx context.Context) error {
	req := ask("pt03-a")
	valid, err := p.peer.Mint(ctx, req, wire.Lifetime)
	if err != nil {
		return err
	}
	parts := strings.Split(valid, ".")
	if len(parts) != 3 {
		return errors.New("a capability has not three parts")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return err
	}
	var claims struct {
		JTI string `json:"jti"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.JTI == "" {
		return fmt.Errorf("a capability has no id: %w", err)
	}
	forge := func(i int) (wire.Request, error) {
		// Another id and the old signature; now and then no capability, or no form of one.
		id := fmt.Sprintf("%0*d", len(claims.JTI), i)
		forged := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), claims.JTI, id, 1)))
		r := wire.Request{Method: req.Method, Target: req.Target}
		switch i % 8 {
		case 0:
		case 1:
			r.Header = []string{wire.Bearer("x." + forged + ".x")}
		default:
			r.Header = []string{wire.Bearer(parts[0] + "." + forged + "." + parts[2])}
		}
		return r, nil
	}
	// As many as fit in the time, and on a busy host more rounds until they would have filled the store.
	for sent := 0; sent < 2*storeNonces; {
		counts, err := wire.Flood(ctx, p.peer.Dial, floodConns, floodSize-sent, time.Now().Add(floodTime), func(i int) (wire.Request, error) { return forge(sent + i) })
		if err != nil {
			return err
		}
		n := counts[wire.Unauthenticated]
		p.t.Witness("unsigned", int64(n))
		for code, k := range counts {
			if code != wire.Unauthenticated {
				p.t.Fail("unsigned-accepted", "%d requests without a valid signature were answered with %s", k, code)
			}
		}
		if n == 0 {
			return errors.New("nothing was answered")
		}
		sent += n
	}
	return nil
}

// pace takes a part of the store to learn how long the rest will take. What fills it has to live
// until it has been sent again: four times the estimate, whole seconds.
func (p *pressure) pace(ctx context.Context) error {
	p.lifetime = wire.Lifetime
	start := time.Now()
	counts, err := p.fresh(ctx, "pt03-pace", paceNonces, false)
	if err != nil {
		return err
	}
	if counts[wire.NotFound] != paceNonces {
		p.t.Fail("unsigned-consumed", "after the unsigned flood %d signed requests were answered with %v", paceNonces, counts)
	}
	fill := time.Since(start) * storeNonces / paceNonces
	p.lifetime = min(wire.Lifetime, max(5*time.Second, (4*fill).Round(time.Second)+time.Second))
	p.first = time.Time{}
	p.t.Observe("lifetime-s", int64(p.lifetime/time.Second))
	return nil
}

// fresh sends n new requests of a workspace; keep says whether they are used again later.
func (p *pressure) fresh(ctx context.Context, workspace string, n int, keep bool) (map[string]int, error) {
	req, list := ask(workspace), make([]wire.Request, n)
	if p.first.IsZero() {
		p.first = time.Now()
	}
	for i := range list {
		token, err := p.peer.Mint(ctx, req, p.lifetime)
		if err != nil {
			return nil, err
		}
		list[i] = wire.Request{Method: req.Method, Target: req.Target, Header: []string{wire.Bearer(token)}}
	}
	if keep {
		p.used = append(p.used, list...)
	}
	return p.send(ctx, list)
}

func (p *pressure) send(ctx context.Context, list []wire.Request) (map[string]int, error) {
	counts, err := wire.Flood(ctx, p.peer.Dial, floodConns, len(list), time.Now().Add(time.Minute), func(i int) (wire.Request, error) { return list[i], nil })
	if err != nil {
		return nil, err
	}
	return counts, nil
}

// again sends the first used capabilities once more, under the pressure named.
func (p *pressure) again(ctx context.Context, under string) error {
	counts, err := p.send(ctx, p.used[:probes])
	if err != nil {
		return err
	}
	if time.Since(p.first) >= p.lifetime-time.Second {
		p.t.Inconclusive("too-slow", "the first capabilities had expired before they were sent again, %s", under)
	}
	p.t.Witness("sent-again", probes)
	if counts[wire.Replay] != probes {
		p.t.Fail("evicted-reopened", "%s, used capabilities were answered with %v", under, counts)
	}
	return nil
}

// share fills one workspace's part of the store, and looks that others are served.
func (p *pressure) share(ctx context.Context) error {
	full, err := p.fresh(ctx, "pt03-a", shareNonces, true)
	if err != nil {
		return err
	}
	if full[wire.NotFound] != shareNonces {
		p.t.Fail("unsigned-consumed", "after the unsigned flood a share of %d had room for %v", shareNonces, full)
	}
	beyond, err := p.fresh(ctx, "pt03-a", probes, false)
	if err != nil {
		return err
	}
	if err := p.again(ctx, "with a full share"); err != nil {
		return err
	}
	p.t.Witness("share-full", int64(beyond[wire.NoncesExhausted]))
	if beyond[wire.NoncesExhausted] != probes {
		p.t.Fail("share-unbounded", "beyond its share of %d a workspace was answered with %v", shareNonces, beyond)
	}
	other, err := p.fresh(ctx, "pt03-b", 1, false)
	if err != nil {
		return err
	}
	if other[wire.NotFound] != 1 {
		p.t.Fail("neighbour-refused", "while one share is full another workspace was answered with %v", other)
	}
	return nil
}

// store fills all of it.
func (p *pressure) store(ctx context.Context) error {
	taken := paceNonces + shareNonces + 1
	for _, step := range []struct {
		workspace string
		n         int
	}{{"pt03-b", shareNonces - 1}, {"pt03-c", shareNonces}, {"pt03-d", storeNonces - 3*shareNonces - paceNonces}} {
		counts, err := p.fresh(ctx, step.workspace, step.n, false)
		if err != nil {
			return err
		}
		taken += counts[wire.NotFound]
	}
	p.t.Observe("taken", taken)
	if taken < storeNonces-ownNonces {
		p.t.Fail("capacity-lost", "a store for %d took %d", storeNonces, taken)
	}
	beyond, err := p.fresh(ctx, "pt03-e", probes, false)
	if err != nil {
		return err
	}
	if err := p.again(ctx, "with a full store"); err != nil {
		return err
	}
	p.t.Witness("store-full", int64(beyond[wire.NoncesExhausted]))
	if beyond[wire.NoncesExhausted] != probes {
		p.t.Fail("store-unbounded", "beyond its %d the store answered %v", storeNonces, beyond)
	}
	return nil
}

// expiry waits until what fills the store has ended.
func (p *pressure) expiry(ctx context.Context) error {
	timer := time.NewTimer(p.lifetime + 500*time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	old, err := p.send(ctx, p.used[:probes])
	if err != nil {
		return err
	}
	if old[wire.Expired] != probes {
		p.t.Fail("expired-accepted", "expired capabilities were answered with %v", old)
	}
	again, err := p.fresh(ctx, "pt03-a", shareNonces, false)
	if err != nil {
		return err
	}
	if again[wire.NotFound] != shareNonces {
		p.t.Fail("no-recovery", "after the expiry a share of %d had room for %v", shareNonces, again)
	}
	return nil
}
