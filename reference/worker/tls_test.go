// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// authority is a certificate authority of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, key := a.sign(a.cert, nil)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = cert, key
	return a
}

func (a *authority) sign(c *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// leaf signs a certificate as altered, and returns it with its key in PEM.
func (a *authority) leaf(alter func(*x509.Certificate)) (cert, key []byte) {
	a.t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<40))
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	alter(c)
	der, k := a.sign(c, a.key)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func named(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.DNSNames = names }
}

// secured is a rig with a TLS listener besides its socket.
type secured struct {
	*rig
	ca   *authority
	tls  TLS
	addr string
	log  *lockedBuffer // of the listener
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	// As an operator would: a rename, so that no reader sees half of it.
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func newSecured(t *testing.T, names ...string) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{ca: newAuthority(t), log: &lockedBuffer{}}
	s.tls = TLS{Address: "127.0.0.1:0", Certificate: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	s.certify(t, "worker.test")
	if len(names) > 0 {
		s.tls.ClientCAs, s.tls.ClientNames = filepath.Join(dir, "ca.pem"), names
		writeFile(t, s.tls.ClientCAs, s.ca.pem())
	}
	l, err := ListenTLS(t.Context(), s.tls, slog.New(slog.NewJSONHandler(s.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	s.rig = newRig(t, tweak{listeners: []net.Listener{l}})
	return s
}

func (s *secured) certify(t *testing.T, name string) {
	t.Helper()
	cert, key := s.ca.leaf(named(name))
	writeFile(t, s.tls.Key, key)
	writeFile(t, s.tls.Certificate, cert)
}

func pair(t *testing.T, cert, key []byte) []tls.Certificate {
	t.Helper()
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return []tls.Certificate{p}
}

// get asks for a sandbox's state with a capability, over cfg, by the given protocols.
func (s *secured) get(t *testing.T, cfg *tls.Config, p *http.Protocols) (*http.Response, []byte, error) {
	t.Helper()
	req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token, err := s.client.Mint(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: cfg, Protocols: p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", s.addr)
	}}
	defer tr.CloseIdleConnections()
	hr, err := http.NewRequestWithContext(t.Context(), "GET", "https://worker.test"+req.Target, nil)
	if err != nil {
		t.Fatal(err)
	}
	hr.Header.Set("Authorization", "Bearer "+token)
	res, err := tr.RoundTrip(hr)
	if err != nil {
		return nil, nil, err
	}
	b, err := io.ReadAll(res.Body)
	return res, b, err
}

func only(h2 bool) *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(!h2)
	p.SetHTTP2(h2)
	return &p
}

func TestTLS(t *testing.T) {
	s := newSecured(t)
	cfg := &tls.Config{RootCAs: s.ca.pool()}
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(name, func(t *testing.T) {
			res, b, err := s.get(t, cfg.Clone(), only(h2))
			if err != nil || res.StatusCode != 200 || res.Proto != name || !bytes.Contains(b, []byte(`"state":"ready"`)) {
				t.Fatalf("got %+v %s, %v", res, b, err)
			}
			if res.TLS.Version != tls.VersionTLS13 {
				t.Errorf("TLS version %#x", res.TLS.Version)
			}
		})
	}
	t.Run("TLS 1.2", func(t *testing.T) {
		old := cfg.Clone()
		old.MaxVersion = tls.VersionTLS12
		if res, _, err := s.get(t, old, only(false)); err == nil {
			t.Errorf("served: %s", res.Status)
		}
	})
	t.Run("the caller verifies the name", func(t *testing.T) {
		other := cfg.Clone()
		other.ServerName = "other.test"
		if res, _, err := s.get(t, other, only(false)); err == nil {
			t.Errorf("served: %s", res.Status)
		}
	})
	t.Run("cleartext", func(t *testing.T) {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(c)
		if bytes.Contains(b, []byte("HTTP")) {
			t.Errorf("answered %q", b)
		}
	})
	t.Run("a refusal of net/http is of the union", func(t *testing.T) {
		c, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: s.ca.pool(), ServerName: "worker.test"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /v1/health HTTP/1.1\r\n\r\n"); err != nil { // no Host
			t.Fatal(err)
		}
		refusal(t, c, api.RequestInvalid)
	})
}

func TestTLSClientNames(t *testing.T) {
	s := newSecured(t, "control.test", "spiffe://test/control")
	uri, err := url.Parse("spiffe://test/control")
	if err != nil {
		t.Fatal(err)
	}
	foreign := newAuthority(t)
	for name, tt := range map[string]struct {
		by     *authority
		alter  func(*x509.Certificate)
		served bool
	}{
		"DNS name":           {s.ca, named("x.test", "control.test"), true},
		"URI":                {s.ca, func(c *x509.Certificate) { c.URIs = []*url.URL{uri} }, true},
		"no certificate":     {nil, nil, false},
		"another name":       {s.ca, named("other.test"), false},
		"case variant":       {s.ca, named("CONTROL.test"), false},
		"wildcard":           {s.ca, named("*.test"), false},
		"subject only":       {s.ca, func(c *x509.Certificate) { c.Subject.CommonName = "control.test" }, false},
		"another authority":  {foreign, named("control.test"), false},
		"expired":            {s.ca, func(c *x509.Certificate) { named("control.test")(c); c.NotAfter = time.Now().Add(-time.Minute) }, false},
		"for servers only":   {s.ca, func(c *x509.Certificate) { named("control.test")(c); c.ExtKeyUsage = c.ExtKeyUsage[:1] }, false},
		"name as an address": {s.ca, func(c *x509.Certificate) { c.EmailAddresses = []string{"control.test"} }, false},
	} {
		for proto, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
			t.Run(name+", "+proto, func(t *testing.T) {
				cfg := &tls.Config{RootCAs: s.ca.pool()}
				if tt.by != nil {
					cert, key := tt.by.leaf(tt.alter)
					p := pair(t, cert, key)
					// Sent whatever the worker says it accepts.
					cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p[0], nil }
				}
				before := s.fake.count()
				res, _, err := s.get(t, cfg, only(h2))
				if tt.served != (err == nil) || tt.served && res.StatusCode != 200 {
					t.Errorf("got %v, %v", res, err)
				}
				if !tt.served && s.fake.count() != before {
					t.Error("the request had an effect")
				}
			})
		}
	}
}

func TestTLSFilesAreReadAgain(t *testing.T) {
	s := newSecured(t, "control.test")
	cert, key := s.ca.leaf(named("control.test"))
	mine := &tls.Config{RootCAs: s.ca.pool(), Certificates: pair(t, cert, key)}
	serial := func() *big.Int {
		t.Helper()
		res, _, err := s.get(t, mine.Clone(), only(false))
		if err != nil {
			t.Fatal(err)
		}
		return res.TLS.PeerCertificates[0].SerialNumber
	}
	first := serial()
	s.certify(t, "worker.test")
	second := serial()
	if first.Cmp(second) == 0 {
		t.Error("the replaced certificate is still shown")
	}
	good, err := os.ReadFile(s.tls.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(){
		"garbage": func() { writeFile(t, s.tls.Certificate, []byte("garbage")) },
		"absent": func() {
			if err := os.Remove(s.tls.Certificate); err != nil {
				t.Fatal(err)
			}
		},
		"another key's": func() { c, _ := s.ca.leaf(named("worker.test")); writeFile(t, s.tls.Certificate, c) },
	} {
		s.log.reset()
		damage()
		for range 3 { // anybody can cause handshakes
			if got := serial(); got.Cmp(second) != 0 {
				t.Errorf("%s: another certificate is shown", name)
			}
		}
		if n := strings.Count(s.log.String(), "the last good ones stay"); n != 1 {
			t.Errorf("%s: the log says %d times that the files cannot be used", name, n)
		}
	}
	writeFile(t, s.tls.Certificate, good)
	if err := os.Chmod(s.tls.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	if l, err := ListenTLS(t.Context(), s.tls, slog.New(slog.DiscardHandler)); err == nil {
		t.Errorf("a key that others can read is accepted: %v", l.Close())
	}
	if err := os.Chmod(s.tls.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.tls.ClientCAs, newAuthority(t).pem())
	if res, _, err := s.get(t, mine.Clone(), only(false)); err == nil {
		t.Errorf("an authority that was taken away still counts: %s", res.Status)
	}
}

func TestCleartextIsLoopbackOnly(t *testing.T) {
	for _, a := range []string{"0.0.0.0:0", ":0", "localhost:0", "[::]:0", "10.0.0.1:0", "127.0.0.1", "[fe80::1%lo]:0", "128.0.0.1:0", "[::ffff:10.0.0.1]:0"} {
		if l, err := ListenUnsafeCleartextLoopback(t.Context(), a); err == nil {
			t.Errorf("listens on %s for %q: %v", l.Addr(), a, l.Close())
		}
	}
	l, err := ListenUnsafeCleartextLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, tweak{listeners: []net.Listener{l}})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token, err := r.client.Mint(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET "+req.Target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+token+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if res := answer(t, c); res.StatusCode != 200 {
		t.Errorf("got %s", res.Status)
	}
}

func TestListenerConfiguration(t *testing.T) {
	good := goodConfig(t)
	good.TLS = &TLS{Address: ":8443", Certificate: "/c", Key: "/k", ClientCAs: "/ca", ClientNames: []string{"n"}}
	good.UnsafeCleartextLoopback = "127.0.0.1:8080"
	if _, err := load(t, good); err != nil {
		t.Fatal(err)
	}
	for name, alter := range map[string]func(*Config){
		"tls.address":                            func(c *Config) { c.TLS.Address = "host" },
		"tls.address ":                           func(c *Config) { c.TLS.Address = "host:" },
		"tls.certificate":                        func(c *Config) { c.TLS.Certificate = "c" },
		"tls.key":                                func(c *Config) { c.TLS.Key = "" },
		"tls.clientCAs":                          func(c *Config) { c.TLS.ClientCAs = "ca" },
		"tls.clientCAs and tls.clientNames":      func(c *Config) { c.TLS.ClientNames = nil },
		"tls.clientCAs and tls.clientNames ":     func(c *Config) { c.TLS.ClientCAs = "" },
		"tls.clientCAs and tls.clientNames need": func(c *Config) { c.TLS.ClientNames = []string{""} },
		"unsafeCleartextLoopback":                func(c *Config) { c.UnsafeCleartextLoopback = "0.0.0.0:80" },
		"unsafeCleartextLoopback is":             func(c *Config) { c.UnsafeCleartextLoopback = "localhost:80" },
	} {
		c := good
		own := *good.TLS
		c.TLS = &own
		alter(&c)
		if _, err := load(t, c); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Evidence of a worker without it does not admit one with it; TLS changes nothing.
	document := func(c Config) string {
		b, err := c.SecurityDocument()
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	with, without := good, good
	without.UnsafeCleartextLoopback, without.TLS = "", nil
	if document(with) == document(without) {
		t.Error("cleartext is not in the security document")
	}
	with.UnsafeCleartextLoopback = ""
	if document(with) != document(without) {
		t.Error("TLS is in the security document")
	}
}
