// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/session"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

func served(t *testing.T) (*Metrics, *http.Client) {
	t.Helper()
	m := New(Build{"1.2", "abc", "clean"}, time.Unix(1_700_000_000, 500_000_000))
	if err := m.Watch(Sources{
		Connections: func() worker.ConnectionCounts {
			return worker.ConnectionCounts{Open: 3, Waiting: 1, Max: 128, PutOut: 7, Expired: 2}
		},
		SuppressedLines: func() uint64 { return 11 }, LostLines: func() uint64 { return 12 }, Nonces: func() int { return 42 },
		Sessions: func() session.Counts {
			return session.Counts{
				Sandboxes: map[string]int{"ready": 2, "never heard of": 1}, Creating: 1, Execs: 5, ReservedBytes: 1 << 20, ReservedInodes: 99,
				Retirements: map[string]uint64{"dispose": 4, "tenant's text": 1}, Removals: 3, Retries: 6,
			}
		},
		Limits: api.Limits{Nonces: 1000, Creates: 4, Execs: 64},
	}); err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/m.sock"
	l, err := Listen(t.Context(), worker.Metrics{Listen: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx, l, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return m, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

func scrape(t *testing.T, c *http.Client) []byte {
	t.Helper()
	res, err := c.Get("http://worker/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
		t.Fatalf("%d %s, %v", res.StatusCode, res.Header, err)
	}
	return body
}

// values parses a page and returns every sample of our own, by name and labels.
func values(t *testing.T, page []byte) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			key := strings.TrimPrefix(name, namespace+"_")
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.Counter != nil:
				out[key] = m.Counter.GetValue()
			case m.Gauge != nil:
				out[key] = m.Gauge.GetValue()
			case m.Histogram != nil:
				out[key+" count"], out[key+" sum"] = float64(m.Histogram.GetSampleCount()), m.Histogram.GetSampleSum()
			}
		}
	}
	return out
}

func TestPageIsWellFormed(t *testing.T) {
	_, c := served(t)
	page := scrape(t, c)
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, namespace) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	// The linter must be able to fail.
	bad := "# TYPE hallmark_worker_things counter\nhallmark_worker_things 1\n"
	if problems, err := promlint.New(strings.NewReader(bad)).Lint(); err != nil || len(problems) == 0 {
		t.Errorf("the linter finds nothing: %v", err)
	}
	for _, part := range []string{"go_goroutines ", "process_open_fds ", "process_resident_memory_bytes "} {
		if !bytes.Contains(page, []byte("\n"+part)) {
			t.Errorf("no %s", part)
		}
	}
}

func TestValuesFollowEvents(t *testing.T) {
	m, c := served(t)
	before := values(t, scrape(t, c))
	for key, want := range map[string]float64{
		"connections_open": 3, "connections_waiting": 1, "connections_limit": 128,
		"connections_refused_total{reason=put_out}": 7, "connections_refused_total{reason=expired}": 2,
		"sandboxes{state=ready}": 2, "sandboxes{state=creating}": 0, "sandboxes{state=retiring}": 0, "sandboxes{state=other}": 1,
		"creates_in_flight": 1, "creates_limit": 4, "execs_in_flight": 5, "execs_limit": 64,
		"retirements_total{reason=dispose}": 4, "retirements_total{reason=idle}": 0, "retirements_total{reason=other}": 1,
		"removals_total": 3, "removal_retries_total": 6, "workspace_reserved_bytes": 1 << 20, "workspace_reserved_inodes": 99,
		"nonces": 42, "nonces_limit": 1000, "log_lines_suppressed_total": 11, "log_lines_lost_total": 12,
		"build_info{commit=abc,tree=clean,version=1.2}": 1, "start_time_seconds": 1_700_000_000.5,
		"requests_total{code=ok,op=exec}": 0, "request_duration_seconds{op=exec} count": 0, "requests_in_flight": 0,
	} {
		if got, ok := before[key]; !ok || got != want {
			t.Errorf("%s is %v (%t), want %v", key, got, ok, want)
		}
	}
	for range 3 {
		m.RequestBegan()
	}
	m.StreamBegan()
	during := values(t, scrape(t, c))
	if during["requests_in_flight"] != 3 || during["streams_in_flight"] != 1 {
		t.Errorf("in flight: %v, %v", during["requests_in_flight"], during["streams_in_flight"])
	}
	m.RequestEnded(worker.RequestEnd{Op: api.OpExec, Took: 1500 * time.Millisecond, Streamed: true})
	m.RequestEnded(worker.RequestEnd{Op: api.OpExec, Code: api.ExecAborted, Took: 500 * time.Millisecond})
	m.RequestEnded(worker.RequestEnd{Op: worker.OpUnrouted, Code: api.Unauthenticated})
	m.Committed(state.Commit{Writes: 5, Took: 2 * time.Millisecond})
	m.Committed(state.Commit{Writes: 1, Err: errors.New("no space left")})
	m.Committed(state.Commit{Writes: 1, Err: fmt.Errorf("x: %w", state.ErrBroken)})
	after := values(t, scrape(t, c))
	for key, want := range map[string]float64{
		"requests_in_flight": 0, "streams_in_flight": 0,
		"requests_total{code=ok,op=exec}": 1, "requests_total{code=" + string(api.ExecAborted) + ",op=exec}": 1,
		"requests_total{code=" + string(api.Unauthenticated) + ",op=unrouted}": 1,
		"request_duration_seconds{op=exec} count":                              2, "request_duration_seconds{op=exec} sum": 2,
		"state_commits_total{result=ok}": 1, "state_commits_total{result=no_room}": 1, "state_commits_total{result=failed}": 1,
		"state_commit_writes count": 3, "state_commit_writes sum": 7, "state_commit_duration_seconds count": 3,
	} {
		if got, ok := after[key]; !ok || got != want {
			t.Errorf("%s is %v (%t), want %v", key, got, ok, want)
		}
	}
}

// Nobody can make a series: what is outside of its set is "other".
func TestLabelsAreClosed(t *testing.T) {
	m, c := served(t)
	for i := range 1000 {
		m.RequestBegan()
		m.RequestEnded(worker.RequestEnd{Op: api.Op(fmt.Sprint("op-", i)), Code: api.Code(fmt.Sprint("code-", i))})
	}
	page := values(t, scrape(t, c))
	if page["requests_total{code=other,op=other}"] != 1000 {
		t.Errorf("others: %v", page["requests_total{code=other,op=other}"])
	}
	for key := range page {
		if strings.Contains(key, "-1") || strings.Contains(key, "tenant") || strings.Contains(key, "heard") {
			t.Errorf("series %s", key)
		}
	}
	// All that can be: operations times codes, and the histograms.
	if most := (len(m.ops) + 1) * (len(m.codes) + 3); len(page) > most {
		t.Errorf("%d samples, at most %d", len(page), most)
	}
}

func TestOnlyTheScrapeIsServed(t *testing.T) {
	_, c := served(t)
	for _, tt := range [][2]string{{"GET", "/"}, {"GET", "/metrics/"}, {"POST", "/metrics"}, {"GET", "/v1/health"}, {"GET", "/debug/pprof/"}} {
		req, err := http.NewRequest(tt[0], "http://worker"+tt[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 404 {
			t.Errorf("%s %s: %d", tt[0], tt[1], res.StatusCode)
		}
	}
}

func TestListen(t *testing.T) {
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := probe.Addr().String()
	if _, err := Listen(t.Context(), worker.Metrics{Listen: address}); err == nil {
		t.Error("a port that is taken was bound")
	}
	probe.Close()
	l, err := Listen(t.Context(), worker.Metrics{Listen: address})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, bad := range []string{"", "0.0.0.0:1", "localhost:9464", "relative/path"} {
		if _, err := Listen(t.Context(), worker.Metrics{Listen: bad}); err == nil {
			t.Errorf("%q was bound", bad)
		}
	}
}

func TestScrapesBesideRequests(t *testing.T) {
	m, c := served(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				m.RequestBegan()
				m.RequestEnded(worker.RequestEnd{Op: api.OpGet})
			}
		})
	}
	for range 3 {
		scrape(t, c)
	}
	wg.Wait()
	if got := values(t, scrape(t, c))["requests_total{code=ok,op=get}"]; got != 800 {
		t.Errorf("%v requests", got)
	}
}

func TestWatchNeedsEverySource(t *testing.T) {
	if err := New(Build{}, time.Now()).Watch(Sources{}); err == nil {
		t.Error("accepted")
	}
}

// The table of the documentation has every metric, with its help, and no other.
func TestDocumentHasEveryMetric(t *testing.T) {
	m, c := served(t)
	m.RequestBegan()
	document, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(scrape(t, c)))
	if err != nil {
		t.Fatal(err)
	}
	documented := 0
	for name, f := range families {
		if !strings.HasPrefix(name, namespace) {
			continue
		}
		documented++
		kind := strings.ToLower(f.GetType().String())
		if row := fmt.Sprintf("| `%s` | %s | %s |\n", name, kind, f.GetHelp()); !bytes.Contains(document, []byte(row)) {
			t.Errorf("docs/operations.md lacks the row\n%s", row)
		}
	}
	if got := bytes.Count(document, []byte("\n| `"+namespace)); got != documented {
		t.Errorf("the document has %d metrics, there are %d", got, documented)
	}
}
