// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Each benchmark here sends the same request over a unix socket: an exec of 2 KiB, to a lifecycle
// that answers at once. What is measured is the request as a caller sees it. `make bench` runs them
// and prints the table.

const benchTarget = "/v1/sandboxes/" + benchSandbox + "/exec"
const benchSandbox = "0123456789abcdef0123456789abcdef"

// benchBody is an exec request of 2 KiB, most of it arguments and a little stdin.
func benchBody(tb testing.TB) []byte {
	tb.Helper()
	req := api.ExecRequest{InvocationID: "invocation-1", Argv: []string{"/bin/program"}, Cwd: "work", Stdin: bytes.Repeat([]byte("stdin "), 40), TimeoutMs: 60_000, MaxOutputBytes: 1 << 20}
	for {
		b, err := strictjson.Marshal(req)
		if err != nil {
			tb.Fatal(err)
		}
		if len(b) >= 2048 {
			return b
		}
		req.Argv = append(req.Argv, fmt.Sprintf("--option-%d=%s", len(req.Argv), strings.Repeat("v", 40)))
	}
}

// site is a worker on a socket, and what signs for it.
type site struct {
	socket  string
	minter  *capability.Minter
	epoch   string
	commits atomic.Int64
	release func()
}

type instant struct{ *fake }

func (instant) Exec(_ context.Context, _, _ string, req api.ExecRequest, _ string) (api.ExecResult, error) {
	zero := 0
	return api.ExecResult{InvocationID: req.InvocationID, Stdout: []byte("done\n"), ExitCode: &zero, CleanupProven: true}, nil
}

// inMemory consumes nonces without a disk, to show what durability costs.
type inMemory struct{ seen sync.Map }

func (m *inMemory) ConsumeNonce(_ context.Context, jti, _ string, _ int64) error {
	if _, again := m.seen.LoadOrStore(jti, true); again {
		return state.ErrReplay
	}
	return nil
}

func newSite(tb testing.TB, dir string, authority ed25519.PrivateKey, durable bool) *site {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	s := &site{socket: filepath.Join(dir, "w.sock")}
	clock, err := capability.NewClock()
	must(err)
	store, err := state.Open(filepath.Join(dir, "state"), state.Options{
		Mode: api.Production, Now: clock.Now, Nonces: 1 << 30, NoncesPerWorkspace: 1 << 30, Observe: func(state.Commit) { s.commits.Add(1) },
	})
	must(err)
	s.epoch = store.Epoch()
	verifier, err := capability.NewVerifier(capability.VerifierConfig{
		Issuer: "control", Audience: "worker-1", Epoch: s.epoch, Now: clock.Now, Keys: []capability.Key{{ID: "k1", Public: authority.Public().(ed25519.PublicKey)}},
	})
	must(err)
	s.minter, err = capability.NewMinter(capability.MinterConfig{Issuer: "control", KeyID: "k1", Key: authority, Audience: "worker-1", Lifetime: 5 * time.Minute})
	must(err)
	signer, err := capability.NewSigner(authority)
	must(err)
	var nonces Nonces = store
	if !durable {
		nonces = &inMemory{}
	}
	limits := DefaultLimits(ceilings)
	limits.Connections = 512
	server, err := New(Options{
		Health: api.Health{ProtocolVersion: api.ProtocolVersion, WorkerID: "worker-1", BootEpoch: s.epoch, Mode: api.Production,
			CohortID: hexOf("c"), PinsDigest: hexOf("d"), EvidenceDigests: []string{}, Features: Features(), Limits: limits},
		Verifier: verifier, Signer: signer, Nonces: nonces, Sessions: instant{&fake{}}, Log: slog.New(slog.NewJSONHandler(io.Discard, nil)),
		OpenFiles: func(context.Context, string, string) (context.Context, Files, func(), error) {
			return nil, nil, nil, io.EOF
		},
	})
	must(err)
	l, err := Listen(context.Background(), s.socket)
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, time.Second, l) }()
	s.release = func() {
		stop()
		<-done
		must(store.Close())
	}
	return s
}

// plainSite is the same request and answer without signature, nonce, digest and strict decoding.
func plainSite(tb testing.TB, dir string) *site {
	tb.Helper()
	answer, err := instant{}.Exec(context.Background(), "", "", api.ExecRequest{InvocationID: "invocation-1"}, "")
	if err != nil {
		tb.Fatal(err)
	}
	s := &site{socket: filepath.Join(dir, "w.sock")}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		tb.Fatal(err)
	}
	hs := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, api.MaxRequestBytes)); err != nil {
			return
		}
		b, err := strictjson.Marshal(answer)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", api.TypeJSON)
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
	})}
	go func() { _ = hs.Serve(l) }()
	s.release = func() { _ = hs.Close() }
	return s
}

// requests prepares n, each with a capability of its own where there is somebody to sign.
func (s *site) requests(tb testing.TB, n int, body []byte) []*http.Request {
	tb.Helper()
	out := make([]*http.Request, n)
	for i := range out {
		r, err := http.NewRequest("POST", "http://worker"+benchTarget, bytes.NewReader(body))
		if err != nil {
			tb.Fatal(err)
		}
		r.Header.Set("Content-Type", api.TypeJSON)
		token := strings.Repeat("t", 700) // as long as a real one
		if s.minter != nil {
			if token, err = s.minter.Mint(capability.Grant{Op: api.OpExec, Method: "POST", Target: benchTarget, Body: body, WorkspaceID: "ws", SandboxID: benchSandbox, Epoch: s.epoch}); err != nil {
				tb.Fatal(err)
			}
		}
		r.Header.Set("Authorization", "Bearer "+token)
		out[i] = r
	}
	return out
}

func (s *site) client() *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.socket)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 1024, DisableCompression: true}}
}

func send(c *http.Client, r *http.Request) error {
	res, err := c.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	if cerr := res.Body.Close(); err == nil {
		err = cerr
	}
	if err == nil && res.StatusCode != 200 {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return err
}

// report adds median and 99th percentile to what the benchmark says.
func reportTimes(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-µs")
}

// variants are the sites that are measured beside each other.
func variants(b *testing.B, measure func(b *testing.B, s *site)) {
	for _, v := range []struct {
		name string
		make func(dir string) *site
	}{
		{"plain", func(dir string) *site { return plainSite(b, dir) }},
		{"memory", func(dir string) *site { return newSite(b, dir, benchKey(b), false) }},
		{"durable", func(dir string) *site { return newSite(b, dir, benchKey(b), true) }},
	} {
		b.Run(v.name, func(b *testing.B) {
			s := v.make(b.TempDir())
			defer s.release()
			measure(b, s)
		})
	}
}

func benchKey(b *testing.B) ed25519.PrivateKey {
	_, k, err := ed25519.GenerateKey(nil)
	if err != nil {
		b.Fatal(err)
	}
	return k
}

// BenchmarkRequest is one caller, one request after the other.
func BenchmarkRequest(b *testing.B) {
	body := benchBody(b)
	variants(b, func(b *testing.B, s *site) {
		c, requests := s.client(), s.requests(b, b.N+20, body)
		for _, r := range requests[b.N:] { // warm
			if err := send(c, r); err != nil {
				b.Fatal(err)
			}
		}
		took := make([]time.Duration, b.N)
		b.ResetTimer()
		for i, r := range requests[:b.N] {
			start := time.Now()
			if err := send(c, r); err != nil {
				b.Fatal(err)
			}
			took[i] = time.Since(start)
		}
		b.StopTimer()
		reportTimes(b, took)
	})
}

// Benchmark64Clients is 64 callers at once, each with a connection of its own.
func Benchmark64Clients(b *testing.B) {
	const clients = 64
	body := benchBody(b)
	variants(b, func(b *testing.B, s *site) {
		c, requests := s.client(), s.requests(b, b.N+clients, body)
		took := make([]time.Duration, b.N)
		run := func(from, to int) {
			var next atomic.Int64
			next.Store(int64(from))
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for i := next.Add(1) - 1; i < int64(to); i = next.Add(1) - 1 {
						start := time.Now()
						if err := send(c, requests[i]); err != nil {
							b.Error(err)
						}
						if i < int64(b.N) {
							took[i] = time.Since(start)
						}
					}
				})
			}
			wg.Wait()
		}
		run(b.N, b.N+clients) // warm: the connections are there
		before := s.commits.Load()
		b.ResetTimer()
		run(0, b.N)
		b.StopTimer()
		reportTimes(b, took)
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		// bbolt syncs twice for each transaction: the pages, then the meta page.
		b.ReportMetric(2*float64(s.commits.Load()-before)/float64(b.N), "fsyncs/request")
	})
}

const memoryEnv = "HALLMARK_WORKER_BENCH_MEMORY"

// TestMain doubles as the worker of BenchmarkConnectionMemory.
func TestMain(m *testing.M) {
	if dir := os.Getenv(memoryEnv); dir != "" {
		memoryChild(dir)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// alone is a testing.TB outside of a test.
type alone struct{ testing.TB }

func (alone) Helper()           {}
func (alone) Fatal(what ...any) { panic(fmt.Sprint(what...)) }

// memoryChild serves until its standard input ends.
func memoryChild(dir string) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	s := newSite(alone{}, dir, key, true)
	fmt.Printf("%x %s\n", key.Seed(), s.epoch)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// BenchmarkConnectionMemory is the peak of a worker's resident memory over what it is with one
// connection, for each of many: proven and idle, and each in the middle of a request of 2 KiB whose
// last byte has not come.
func BenchmarkConnectionMemory(b *testing.B) {
	const connections = 400
	body := benchBody(b)
	for _, active := range []bool{false, true} {
		name := map[bool]string{false: "idle", true: "active"}[active]
		b.Run(name, func(b *testing.B) {
			// Once, however often the benchmark is to run: a peak does not get better by repetition.
			b.ReportMetric(connectionMemory(b, connections, active, body)/(1<<20), "MiB/connection")
		})
	}
}

func connectionMemory(b *testing.B, n int, active bool, body []byte) float64 {
	dir := b.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memoryEnv+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	var seed []byte
	s := &site{socket: filepath.Join(dir, "w.sock")}
	if _, err := fmt.Fscanf(out, "%x %s\n", &seed, &s.epoch); err != nil {
		b.Fatal(err)
	}
	if s.minter, err = capability.NewMinter(capability.MinterConfig{Issuer: "control", KeyID: "k1", Key: ed25519.NewKeyFromSeed(seed), Audience: "worker-1"}); err != nil {
		b.Fatal(err)
	}
	exchange := func(c net.Conn, r *http.Request, hold bool) {
		var text bytes.Buffer
		if err := r.Write(&text); err != nil {
			b.Fatal(err)
		}
		whole := text.Bytes()
		if hold {
			whole = whole[:len(whole)-1]
		}
		if _, err := c.Write(whole); err != nil {
			b.Fatal(err)
		}
		if hold {
			return
		}
		part := make([]byte, 64<<10)
		if k, err := c.Read(part); err != nil || !bytes.HasPrefix(part[:k], []byte("HTTP/1.1 200")) {
			b.Fatalf("%v %s", err, part[:k])
		}
	}
	requests := s.requests(b, 2*n+200, body)
	conns := make([]net.Conn, n)
	dial := func() net.Conn {
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		return c
	}
	first := dial()
	for _, r := range requests[2*n:] { // the worker's own size, with its heap in use
		exchange(first, r, false)
	}
	before := peak(b, cmd.Process.Pid)
	for i := range conns {
		conns[i] = dial()
		exchange(conns[i], requests[i], false)
	}
	if active {
		for i, c := range conns {
			exchange(c, requests[n+i], true)
		}
		time.Sleep(500 * time.Millisecond) // all handlers are at their last byte
	}
	return float64(peak(b, cmd.Process.Pid)-before) / float64(n)
}

// peak is VmHWM of a process in bytes; proc(5).
func peak(b *testing.B, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib << 10
		}
	}
	b.Fatal("no VmHWM")
	return 0
}
