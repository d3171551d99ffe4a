// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hallmark-sandbox/hallmark/reference/session"
)

// counts turns what the parts say into metrics, at each scrape.
type counts struct {
	from Sources

	open, waiting, places, closed        *prometheus.Desc
	sandboxes, creates, execs            *prometheus.Desc
	createLimit, execLimit               *prometheus.Desc
	retirements, removals, retries       *prometheus.Desc
	reservedBytes, reservedInodes        *prometheus.Desc
	nonces, nonceLimit, suppressed, lost *prometheus.Desc
}

func newCounts(s Sources) *counts {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	}
	return &counts{
		from:           s,
		open:           d("connections_open", "Connections that have a place, over all listeners of the API."),
		waiting:        d("connections_waiting", "Connections that are accepted and wait for a place."),
		places:         d("connections_limit", "Places for connections."),
		closed:         d("connections_refused_total", "Connections that the worker closed unasked: put_out made room for another, expired proved nothing in time.", "reason"),
		sandboxes:      d("sandboxes", "Sandboxes that are not gone, by state.", "state"),
		creates:        d("creates_in_flight", "Sandboxes that are being made."),
		createLimit:    d("creates_limit", "How many sandboxes may be made at once."),
		execs:          d("execs_in_flight", "Invocations in progress."),
		execLimit:      d("execs_limit", "How many invocations may be in progress at once."),
		retirements:    d("retirements_total", "Retirements of sandboxes that have begun, by reason.", "reason"),
		removals:       d("removals_total", "Sandboxes whose removal has been proven."),
		retries:        d("removal_retries_total", "Attempts at a removal that failed and are made again."),
		reservedBytes:  d("workspace_reserved_bytes", "What the quotas of workspaces that sandboxes hold allow."),
		reservedInodes: d("workspace_reserved_inodes", "What the quotas of workspaces that sandboxes hold allow, in inodes."),
		nonces:         d("nonces", "Nonces of capabilities that are remembered; those that have ended count until the next one comes."),
		nonceLimit:     d("nonces_limit", "How many nonces are remembered at most; beyond it requests are refused."),
		suppressed:     d("log_lines_suppressed_total", "Lines of the log about requests without authority that were not written."),
		lost:           d("log_lines_lost_total", "Lines of the log that could not be written."),
	}
}

// Describe implements [prometheus.Collector].
func (c *counts) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements [prometheus.Collector].
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	conns := c.from.Connections()
	gauge(c.open, float64(conns.Open))
	gauge(c.waiting, float64(conns.Waiting))
	gauge(c.places, float64(conns.Max))
	counter(c.closed, conns.PutOut, "put_out")
	counter(c.closed, conns.Expired, "expired")

	s := c.from.Sessions()
	states := map[string]int{other: 0}
	for name, n := range s.Sandboxes {
		states[label(session.States(), name)] += n
	}
	for _, name := range append(session.States(), other) {
		gauge(c.sandboxes, float64(states[name]), name)
	}
	reasons := map[string]uint64{}
	for name, n := range s.Retirements {
		reasons[label(session.Reasons(), name)] += n
	}
	for _, name := range append(session.Reasons(), other) {
		counter(c.retirements, reasons[name], name)
	}
	gauge(c.creates, float64(s.Creating))
	gauge(c.createLimit, float64(c.from.Limits.Creates))
	gauge(c.execs, float64(s.Execs))
	gauge(c.execLimit, float64(c.from.Limits.Execs))
	counter(c.removals, s.Removals)
	counter(c.retries, s.Retries)
	gauge(c.reservedBytes, float64(s.ReservedBytes))
	gauge(c.reservedInodes, float64(s.ReservedInodes))

	gauge(c.nonces, float64(c.from.Nonces()))
	gauge(c.nonceLimit, float64(c.from.Limits.Nonces))
	counter(c.suppressed, c.from.SuppressedLines())
	counter(c.lost, c.from.LostLines())
}
