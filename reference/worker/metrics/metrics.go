// SPDX-License-Identifier: Apache-2.0

// Package metrics shows what a worker does, in the Prometheus text format.
//
// It owns the names, the labels and their closed sets, a registry of its own, and a listener that
// is never the API's. It observes requests and commits as they are told to it, and asks the other
// parts for their counts when it is scraped. No label holds anything that a caller chose: an
// operation, code, state or reason outside its set becomes "other", so that nobody can make a new
// series. It never blocks a request, and holds no lock of anybody while it writes.
//
// Read next: docs/operations.md, which has the table.
package metrics

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/session"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

const (
	namespace = "hallmark_worker"
	other     = "other"
	codeOK    = "ok"
)

// Build is what the build info says.
type Build struct{ Version, Commit, Tree string }

// Metrics is a worker's registry. It is a [worker.Observer].
type Metrics struct {
	registry *prometheus.Registry
	ops      map[api.Op]string
	codes    map[api.Code]string

	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	streams   prometheus.Gauge

	commits    *prometheus.CounterVec
	batches    prometheus.Histogram
	commitTime prometheus.Histogram
}

// New makes the registry. Series whose labels are known are there from the start, with 0.
func New(build Build, started time.Time) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), ops: map[api.Op]string{}, codes: map[api.Code]string{worker.CodeOK: codeOK},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "requests_total", Help: "Requests that have ended, by operation and by code of the answer; ok is none.",
		}, []string{"op", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "request_duration_seconds", Help: "Time from a request's headers to the end of its answer, by operation.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900},
		}, []string{"op"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "requests_in_flight", Help: "Requests in progress, streams included.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "streams_in_flight", Help: "Requests in progress whose answer is a stream.",
		}),
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "state_commits_total", Help: "Transactions of the state store, each made durable by two syncs, by result.",
		}, []string{"result"}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "state_commit_writes", Help: "Writes that shared a transaction of the state store.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		commitTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "state_commit_duration_seconds", Help: "Time of a transaction of the state store, its syncs included.",
			Buckets: prometheus.ExponentialBuckets(.0001, 2, 16),
		}),
	}
	for _, op := range append(api.Ops(), worker.OpLiveness, worker.OpUnrouted, worker.OpUnparsed) {
		m.ops[op] = string(op)
	}
	for _, code := range api.Codes() {
		m.codes[code] = string(code)
	}
	for _, op := range m.ops {
		m.requests.WithLabelValues(op, codeOK)
		m.durations.WithLabelValues(op)
	}
	for _, r := range []string{resultOK, resultFull, resultFailed} {
		m.commits.WithLabelValues(r)
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1; the labels say which build runs.",
		ConstLabels: prometheus.Labels{"version": build.Version, "commit": build.Commit, "tree": build.Tree},
	})
	info.Set(1)
	start := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "start_time_seconds", Help: "When this process of the worker began, in Unix time.",
	})
	start.Set(float64(started.UnixMilli()) / 1000)
	m.registry.MustRegister(m.requests, m.durations, m.inFlight, m.streams, m.commits, m.batches, m.commitTime, info, start,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// RequestBegan implements [worker.Observer].
func (m *Metrics) RequestBegan() { m.inFlight.Inc() }

// StreamBegan implements [worker.Observer].
func (m *Metrics) StreamBegan() { m.streams.Inc() }

// RequestEnded implements [worker.Observer].
func (m *Metrics) RequestEnded(e worker.RequestEnd) {
	m.inFlight.Dec()
	if e.Streamed {
		m.streams.Dec()
	}
	op, known := m.ops[e.Op]
	if !known {
		op = other
	}
	code, known := m.codes[e.Code]
	if !known {
		code = other
	}
	m.requests.WithLabelValues(op, code).Inc()
	m.durations.WithLabelValues(op).Observe(e.Took.Seconds())
}

// Results of a commit.
const (
	resultOK     = "ok"
	resultFull   = "no_room" // the next one is tried again
	resultFailed = "failed"  // the store serves no more
)

// Committed is for [state.Options.Observe].
func (m *Metrics) Committed(c state.Commit) {
	result := resultOK
	switch {
	case errors.Is(c.Err, state.ErrBroken):
		result = resultFailed
	case c.Err != nil:
		result = resultFull
	}
	m.commits.WithLabelValues(result).Inc()
	m.batches.Observe(float64(c.Writes))
	m.commitTime.Observe(c.Took.Seconds())
}

// Sources are asked at each scrape. All are required, and called concurrently.
type Sources struct {
	Connections     func() worker.ConnectionCounts
	SuppressedLines func() uint64 // of the log
	LostLines       func() uint64 // likewise
	Sessions        func() session.Counts
	Nonces          func() int
	Limits          api.Limits
}

// Watch adds what other parts count. It is called once, when they are there.
func (m *Metrics) Watch(s Sources) error {
	if s.Connections == nil || s.SuppressedLines == nil || s.LostLines == nil || s.Sessions == nil || s.Nonces == nil {
		return errors.New("metrics: a source is missing")
	}
	return m.registry.Register(newCounts(s))
}

func label(known []string, name string) string {
	if slices.Contains(known, name) {
		return name
	}
	return other
}
