// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// TLS is a listener for callers on other hosts. The certificate names this worker: it is the
// caller who verifies that name. With ClientCAs a caller needs a certificate too, for client
// authentication, whose DNS or URI name is, byte for byte, one of ClientNames.
type TLS struct {
	Address     string   `json:"address"`     // host:port
	Certificate string   `json:"certificate"` // PEM, the worker's own first
	Key         string   `json:"key"`         // PEM
	ClientCAs   string   `json:"clientCAs,omitempty"`
	ClientNames []string `json:"clientNames,omitempty"` // at least one if, and only if, ClientCAs is set
}

func (t TLS) validate() (bad []error) {
	if _, port, err := net.SplitHostPort(t.Address); err != nil || port == "" {
		bad = append(bad, errors.New("tls.address is not host:port"))
	}
	for _, p := range []struct{ name, value string }{{"certificate", t.Certificate}, {"key", t.Key}, {"clientCAs", t.ClientCAs}} {
		if !filepath.IsAbs(p.value) && (p.value != "" || p.name != "clientCAs") {
			bad = append(bad, fmt.Errorf("tls.%s is not an absolute path", p.name))
		}
	}
	if (t.ClientCAs != "") != (len(t.ClientNames) != 0) || slices.Contains(t.ClientNames, "") {
		bad = append(bad, errors.New("tls.clientCAs and tls.clientNames need each other"))
	}
	return bad
}

// ListenTLS binds the listener of t. The files are read now and again at each handshake: what
// was replaced counts from the next handshake on. While what is there cannot be used, the last
// good one stays in force and the log says so. Connections that stand are not cut.
func ListenTLS(ctx context.Context, t TLS, log *slog.Logger) (net.Listener, error) {
	if err := errors.Join(t.validate()...); err != nil {
		return nil, err
	}
	f := &tlsFiles{t: t, log: log}
	if _, err := f.current(ctx); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", t.Address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return &tlsListener{Listener: l, cfg: &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			return f.current(h.Context())
		},
	}}, nil
}

// tlsListener accepts raw connections; the pool of connections puts TLS over them, so that a
// handshake counts against the bound and the deadlines like anything else that is not yet
// a request.
type tlsListener struct {
	net.Listener
	cfg *tls.Config
}

// tlsFiles makes a configuration out of files.
type tlsFiles struct {
	t   TLS
	log *slog.Logger

	mu   sync.Mutex
	text []byte      // guarded by mu; of the three files, as last tried
	cfg  *tls.Config // guarded by mu; the last good one
	told string      // guarded by mu; what is wrong with them, as the log has it; strangers cause handshakes
}

// current reads the files, which are small, rather than trust their times: a replacement within
// the resolution of a time stamp would be missed for ever.
func (f *tlsFiles) current(ctx context.Context) (*tls.Config, error) {
	var parts [3][]byte
	var err error
	for i, path := range []string{f.t.Certificate, f.t.Key, f.t.ClientCAs} {
		if path == "" {
			continue
		}
		var rerr error
		if parts[i], rerr = readBounded(path); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	if st, serr := os.Stat(f.t.Key); serr == nil && st.Mode().Perm()&0o077 != 0 {
		err = errors.Join(err, fmt.Errorf("tls.key has mode %#o, 0600 is needed", st.Mode().Perm()))
	}
	text := bytes.Join(parts[:], []byte{0})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg != nil && err == nil && bytes.Equal(text, f.text) {
		return f.cfg, nil
	}
	var cfg *tls.Config
	if err == nil {
		cfg, err = f.build(parts[0], parts[1], parts[2])
	}
	switch {
	case err == nil:
		f.cfg, f.told = cfg, ""
	case f.cfg == nil:
		return nil, fmt.Errorf("TLS files: %w", err)
	case f.told != err.Error():
		f.told = err.Error()
		f.log.WarnContext(ctx, "TLS files cannot be used, the last good ones stay", "err", err)
	}
	f.text = text
	return f.cfg, nil
}

func (f *tlsFiles) build(certificate, key, cas []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"h2", "http/1.1"},
		// A ticket would outlive the authority or the name that it was given for.
		SessionTicketsDisabled: true,
	}
	if f.t.ClientCAs == "" {
		return cfg, nil
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(cas) {
		return nil, errors.New("clientCAs holds no certificate")
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		return f.t.allowed(s.PeerCertificates[0])
	}
	return cfg, nil
}

// allowed compares alternative names only (RFC 6125, section 6.4.4: a common name is no
// identity), and whole: a wildcard in a client's certificate means nothing.
func (t TLS) allowed(c *x509.Certificate) error {
	for _, n := range c.DNSNames {
		if slices.Contains(t.ClientNames, n) {
			return nil
		}
	}
	for _, u := range c.URIs {
		if slices.Contains(t.ClientNames, u.String()) {
			return nil
		}
	}
	return fmt.Errorf("client certificate with serial %s has none of the allowed names", c.SerialNumber)
}

// ListenUnsafeCleartextLoopback binds a TCP listener without TLS. The host must be a loopback
// address as digits: a name may come to mean another host.
func ListenUnsafeCleartextLoopback(ctx context.Context, address string) (net.Listener, error) {
	a, err := loopback(address)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

func loopback(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" || strings.Contains(host, "%") {
		return "", fmt.Errorf("%q is not host:port", address)
	}
	ip := net.ParseIP(host)
	if ip == nil || !ip.IsLoopback() {
		return "", fmt.Errorf("%q is not a loopback address", host)
	}
	return net.JoinHostPort(ip.String(), port), nil
}
