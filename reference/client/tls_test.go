// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// authority signs certificates of one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{t: t}
	_, a.cert, a.key = a.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a authority) issue(c *x509.Certificate) ([]byte, *x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject, c.NotBefore, c.NotAfter = big.NewInt(1), pkix.Name{CommonName: "test"}, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, cert, key
}

func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// write stores PEM files and returns their paths.
func (a authority) write(der []byte, key *ecdsa.PrivateKey) (cert, keyFile string) {
	a.t.Helper()
	dir := a.t.TempDir()
	kder, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: kder}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, keyFile
}

// TestTLS talks to the worker's own listener, which wants a certificate of the caller too.
func TestTLS(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.write(ca.server())
	roots, _ := ca.write(ca.cert.Raw, ca.key)
	l, err := worker.ListenTLS(t.Context(), worker.TLS{Address: "127.0.0.1:0", Certificate: cert, Key: key, ClientCAs: roots, ClientNames: []string{"caller"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	cfg, stop, err := inProcess(l)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	der, _, ckey := ca.issue(&x509.Certificate{DNSNames: []string{"caller"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature})
	mine := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: ckey}}
	ask := func(c *tls.Config) error {
		t.Helper()
		over := cfg
		over.Socket, over.Address, over.TLS = "", address, c
		cl, err := client.New(over)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = cl.Health(t.Context()); err != nil {
			return err
		}
		_, err = cl.ExecStream(t.Context(), "ws", "sb", api.ExecRequest{InvocationID: "i", Argv: []string{"echo", "x"}, TimeoutMs: 1000, MaxOutputBytes: 10},
			func(api.ExecEvent) error { return nil })
		return err
	}
	if err := ask(&tls.Config{RootCAs: ca.pool(), ServerName: "worker-1", Certificates: mine}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*tls.Config{
		"another authority": {RootCAs: newAuthority(t).pool(), ServerName: "worker-1", Certificates: mine},
		"another name":      {RootCAs: ca.pool(), ServerName: "worker-2", Certificates: mine},
	} {
		var e *api.Error
		if err := ask(c); !errors.As(err, &e) || e.Code != api.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	// TLS 1.3 lets the client finish before the server has judged its certificate.
	var e *api.Error
	if err := ask(&tls.Config{RootCAs: ca.pool(), ServerName: "worker-1"}); !errors.As(err, &e) || e.Code != api.StreamClosed {
		t.Errorf("without a certificate: %v", err)
	}
	old, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MaxVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(cert, key)
		return &c, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); handshakes(old) }()
	address = old.Addr().String()
	if err := ask(&tls.Config{RootCAs: ca.pool(), ServerName: "worker-1", MinVersion: tls.VersionTLS12}); !errors.As(err, &e) || e.Code != api.Unavailable {
		t.Errorf("TLS 1.2: %v", err)
	}
	_ = old.Close()
	<-done
}

func (a authority) server() ([]byte, *ecdsa.PrivateKey) {
	der, _, key := a.issue(&x509.Certificate{DNSNames: []string{"worker-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature})
	return der, key
}

func handshakes(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.(*tls.Conn).Handshake()
		_ = c.Close()
	}
}

func TestConfigIsOneWay(t *testing.T) {
	cfg, stop, err := inProcess()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for name, spoil := range map[string]func(*client.Config){
		"no way":              func(c *client.Config) { c.Socket = "" },
		"two ways":            func(c *client.Config) { c.Address, c.TLS = "127.0.0.1:1", &tls.Config{} },
		"address without TLS": func(c *client.Config) { c.Socket, c.Address = "", "127.0.0.1:1" },
		"socket with TLS":     func(c *client.Config) { c.TLS = &tls.Config{} },
		"no key":              func(c *client.Config) { c.WorkerKey = nil },
		"negative silence":    func(c *client.Config) { c.Silence = -1 },
	} {
		bad := cfg
		spoil(&bad)
		if _, err := client.New(bad); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
