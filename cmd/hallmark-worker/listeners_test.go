// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// certified writes a certificate for worker.test, which is its own authority, and its key.
func certified(t *testing.T) (worker.TLS, *x509.CertPool) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"worker.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	must(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	out := worker.TLS{Address: "127.0.0.1:0", Certificate: filepath.Join(t.TempDir(), "cert"), Key: filepath.Join(t.TempDir(), "key")}
	must(os.WriteFile(out.Certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(os.WriteFile(out.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return out, pool
}

// reserved returns a free address, and what holds it until the worker is to have it.
func reserved(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestListeners: the worker serves all of its listeners, or none when one cannot be had.
func TestListeners(t *testing.T) {
	s := newSite(t)
	files, roots := certified(t)
	secure, clear := reserved(t), reserved(t)
	files.Address = secure.Addr().String()
	s.cfg.TLS, s.cfg.UnsafeCleartextLoopback = &files, clear.Addr().String()
	if err := secure.Close(); err != nil {
		t.Fatal(err)
	}
	p := s.spawn()
	if code := s.wait(p); code != exitNotReady || !strings.Contains(p.stderr.String(), "the cleartext listener cannot be used") {
		t.Fatalf("with one address taken: status %d, %s", code, p.stderr)
	}
	if _, err := os.Stat(s.cfg.Listen); err == nil {
		t.Error("the socket is left behind")
	}
	if err := clear.Close(); err != nil {
		t.Fatal(err)
	}
	p = s.start()
	for name, target := range map[string]string{"https": files.Address, "http": s.cfg.UnsafeCleartextLoopback} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "worker.test"}, ForceAttemptHTTP2: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", target)
			}}
		req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/none", WorkspaceID: "ws", SandboxID: "none"}
		token, err := s.client.Mint(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		hr, err := http.NewRequestWithContext(t.Context(), "GET", name+"://worker.test"+req.Target, nil)
		if err != nil {
			t.Fatal(err)
		}
		hr.Header.Set("Authorization", "Bearer "+token)
		res, err := tr.RoundTrip(hr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, err := io.ReadAll(res.Body)
		if e := api.DecodeError(res.StatusCode, b); err != nil || e.Code != api.SandboxNotFound || (name == "https") != (res.ProtoMajor == 2) {
			t.Errorf("%s: %s %d %s, %v", name, res.Proto, res.StatusCode, b, err)
		}
		tr.CloseIdleConnections()
	}
	s.stop(p)
	for _, a := range []string{files.Address, s.cfg.UnsafeCleartextLoopback} {
		if c, err := net.Dial("tcp", a); err == nil {
			t.Errorf("%s still listens: %v", a, c.Close())
		}
	}
}
