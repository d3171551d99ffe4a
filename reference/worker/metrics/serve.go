// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// Bounds of the listener, which strangers on this host may reach when it is a port.
const (
	scrapesAtOnce = 4
	scrapeTimeout = 10 * time.Second
	headerBytes   = 8 << 10
)

// Listen binds what the configuration names: a unix socket of mode 0600, or a loopback port.
func Listen(ctx context.Context, cfg worker.Metrics) (net.Listener, error) {
	network, address := cfg.Network()
	switch network {
	case "unix":
		return worker.Listen(ctx, address)
	case "tcp":
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, network, address)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("metrics cannot be served on %q", cfg.Listen)
}

// Serve answers GET /metrics on l, and nothing else, until ctx ends. It closes l.
func (m *Metrics) Serve(ctx context.Context, l net.Listener, log *slog.Logger) error {
	page := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		Registry: nil, MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTimeout, ErrorHandling: promhttp.HTTPErrorOnError,
	})
	hs := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics" || r.Method != http.MethodGet {
				http.Error(w, "GET /metrics is all there is", http.StatusNotFound)
				return
			}
			page.ServeHTTP(w, r)
		}),
		ReadTimeout: scrapeTimeout, WriteTimeout: 2 * scrapeTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = hs.Close() })
	defer stop()
	if err := hs.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
