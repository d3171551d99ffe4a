// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

// Times of PROTOCOL.md, section Limits.
const (
	headerTimeout   = 10 * time.Second
	idleTimeout     = 60 * time.Second
	bodyTimeout     = 30 * time.Second // a JSON body, or one step of a transfer without progress
	answerTimeout   = 30 * time.Second
	nonceTimeout    = 5 * time.Second
	createTimeout   = 60 * time.Second
	fsTimeout       = 30 * time.Second
	disposeTimeout  = 30 * time.Second
	transferTimeout = 10 * time.Minute
	execGrace       = 30 * time.Second // of the API beyond the command's own timeout
)

// DefaultConnections is how many connections are served at once, over all listeners.
const DefaultConnections = 128

// Bounds that PROTOCOL.md leaves to the transport.
const (
	maxParsedHeaderBytes = 2 * api.MaxHeaderBytes
	maxStreams           = 32        // of one HTTP/2 connection at once
	receiveBuffer        = 256 << 10 // bytes of bodies of one HTTP/2 connection that are not read yet
	// maxBodyBytes bounds the JSON bodies that are being read and decoded, each as long as it is
	// announced, or has come: without it HTTP/2 would multiply streams by bodies. 64 of the largest.
	maxBodyBytes             = 64 * api.MaxRequestBytes
	maxBodyBytesPerWorkspace = maxBodyBytes / 4
)

// Sessions is the worker's view of the lifecycle; [Lifecycle] makes one of a *session.Manager. All methods are safe
// for concurrent use. Errors are *api.Error; what is not becomes UNAVAILABLE on the wire.
type Sessions interface {
	// Create is idempotent by ClientLeaseID and joins one in flight.
	Create(ctx context.Context, req api.CreateRequest, canonicalDigest string) (api.Receipt, error)
	Get(ctx context.Context, workspaceID, sandboxID string) (api.SandboxState, error)
	// Exec ends the invocation when ctx ends.
	Exec(ctx context.Context, workspaceID, sandboxID string, req api.ExecRequest, canonicalDigest string) (api.ExecResult, error)
	// Start is the claim of Exec; the invocation runs until its end, the end of ctx, or Close.
	Start(ctx context.Context, workspaceID, sandboxID string, req api.ExecRequest, canonicalDigest string) (Execution, error)
	// Cancel ends an invocation and returns its terminal outcome; repeating it gives the same.
	Cancel(ctx context.Context, workspaceID, sandboxID, invocationID string) (api.CancelResponse, error)
	// Renew begins the idle time again.
	Renew(ctx context.Context, workspaceID, sandboxID string) (api.RenewResponse, error)
	// Dispose returns nil only after removal is proven; repeating it succeeds.
	Dispose(ctx context.Context, workspaceID, sandboxID string) error
	Purge(ctx context.Context, workspaceID string) error
}

// Files is one workspace, held open for one request. Paths are relative bytes that have passed
// [api.CheckPath]; an empty one is the workspace itself.
type Files interface {
	Stat(ctx context.Context, path []byte) (api.FSEntry, error)
	List(ctx context.Context, path []byte, cursor string, rows int) (entries []api.FSEntry, next string, err error)
	Mkdir(ctx context.Context, path []byte) error
	Remove(ctx context.Context, path []byte) error
	Rename(ctx context.Context, from, to []byte) error
	Readlink(ctx context.Context, path []byte) ([]byte, error)
	Read(ctx context.Context, path []byte) (io.ReadCloser, int64, error)
	// Write is atomic: an error of body, or a digest other than want, leaves nothing.
	Write(ctx context.Context, call api.FileCall, body io.Reader, want string) (size int64, digest string, err error)
}

// OpenFiles checks binding and lease, and gives the workspace until release is called. The
// context that it returns is ctx, and ends too when the sandbox does; its cause is then an *api.Error.
type OpenFiles func(ctx context.Context, workspaceID, sandboxID string) (life context.Context, files Files, release func(), err error)

// Changes is what happens in a workspace from now on.
type Changes interface {
	// Next waits for a change; ctx's error, after which it may be called again, or why there
	// are no more.
	Next(ctx context.Context) (api.ChangeEvent, error)
}

// OpenChanges is [OpenFiles] for a stream of changes, which is no use of the sandbox: its lease runs
// out meanwhile. Nothing that changes after it has returned is missed.
type OpenChanges func(ctx context.Context, workspaceID, sandboxID string) (life context.Context, changes Changes, release func(), err error)

// Nonces consumes each jti once; *state.Store is one.
type Nonces interface {
	ConsumeNonce(ctx context.Context, jti, workspace string, expUnixMs int64) error
}

// Verifier judges capabilities; *capability.Verifier is one.
type Verifier interface {
	Verify(token string, want capability.Want) (capability.Claims, error)
}

// Options of [New]. All but Admitted and Observer are required.
type Options struct {
	Health api.Health // what this worker says of itself; Challenge is set per answer
	// Admitted gives Health's cohort, pins and evidence as they are now; nil leaves Health's own.
	Admitted    func() (cohort, pins string, evidence []string)
	Verifier    Verifier
	Signer      *capability.Signer
	Nonces      Nonces
	Sessions    Sessions
	OpenFiles   OpenFiles
	OpenChanges OpenChanges
	Log         *slog.Logger
	Observer    Observer // nil for none
}

// Server serves the worker API. It is an [http.Handler].
type Server struct {
	o         Options
	stall     time.Duration // bodyTimeout; tests shorten it, and the next two
	heartbeat time.Duration // heartbeatEvery
	patience  time.Duration // answerTimeout, for an answer or one line of a stream
	draining  atomic.Bool
	lines     lineBudget // of the log, for requests without a capability

	connections *connections
	bodies      *shares // bytes of JSON bodies
	outputs     *shares // bytes of the output of commands that run, or whose answer is being written
	fileOps     *shares // file operations

	leaving context.Context // ends when a drain begins
	leave   context.CancelFunc
	ending  context.Context // ends when what still runs in a drain has to end
	end     context.CancelFunc
}

// New checks o.
func New(o Options) (*Server, error) {
	h := o.Health
	switch {
	case o.Verifier == nil || o.Signer == nil || o.Nonces == nil || o.Sessions == nil || o.OpenFiles == nil || o.OpenChanges == nil || o.Log == nil:
		return nil, errors.New("worker: a part is missing")
	case h.ProtocolVersion != api.ProtocolVersion || !api.ValidID(h.WorkerID) || h.BootEpoch == "":
		return nil, errors.New("worker: protocol version, worker id or boot epoch is missing")
	case h.Mode != api.Qualification && h.Mode != api.Production:
		return nil, fmt.Errorf("worker: unknown mode %q", h.Mode)
	case !api.ValidDigest(h.CohortID) || !api.ValidDigest(h.PinsDigest):
		return nil, errors.New("worker: cohort id or pins digest is not a digest")
	case h.Limits.Connections <= 0:
		return nil, errors.New("worker: no bound on connections")
	}
	if err := h.Limits.ResourceCeilings.Positive(); err != nil {
		return nil, fmt.Errorf("worker: ceilings: %w", err)
	}
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	s := &Server{
		o: o, stall: bodyTimeout, heartbeat: heartbeatEvery, patience: answerTimeout,
		connections: newConnections(int(h.Limits.Connections)),
		bodies:      newShares("bytes of requests", maxBodyBytes, maxBodyBytesPerWorkspace),
		outputs:     outputShares(h.Limits),
		fileOps:     newShares("file operations", maxFileOps, maxFileOpsPerWorkspace),
	}
	s.leaving, s.leave = context.WithCancel(context.Background())
	s.ending, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Features are what every worker has, by the names that the suite uses.
func Features() []string {
	return []string{"admission", "exec", "files", "no-network", "protocol", "quota", "reconcile", "supervisor"}
}

// FeatureCredentials is claimed where providers are configured.
const FeatureCredentials = "credentials"

// Features are what a worker of this configuration has.
func (c Config) Features() []string {
	f := Features()
	if c.Credentials != nil {
		f = append(f, FeatureCredentials)
		slices.Sort(f)
	}
	return f
}

// protocols are HTTP/1.1 and HTTP/2. "Unencrypted" is how net/http sees every connection, since
// TLS ends below it (see conn): the preface tells, on the socket by prior knowledge and under TLS
// after ALPN.
func protocols() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &p
}

// Serve answers on all of ls until ctx ends, then refuses new requests with UNAVAILABLE and waits
// at most drain for those in progress. Commands, uploads and bodies have half of that to end by themselves; then they
// are ended, so that their callers are told instead of cut off. It closes ls. A nil error means
// that nothing was cut off.
func (s *Server) Serve(ctx context.Context, drain time.Duration, ls ...net.Listener) error {
	if len(ls) == 0 {
		return errors.New("serve: no listener")
	}
	hs := &http.Server{
		Handler:     s,
		ConnContext: s.connContext,
		ConnState:   connState,
		Protocols:   protocols(),
		// It would answer OPTIONS * with a 200 that is no answer of the API.
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		IdleTimeout:                  idleTimeout,
		// The bound of the wire is checked by us, below this one. HTTP/2 counts 32 bytes for
		// each field (RFC 9113, section 6.5.2), and answers 431 by itself beyond it.
		MaxHeaderBytes: maxParsedHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxDecoderHeaderTableSize:     4 << 10,
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerStream:     64 << 10,
			MaxReceiveBufferPerConnection: receiveBuffer,
			SendPingTimeout:               idleTimeout, // a peer that is gone without a word
			PingTimeout:                   headerTimeout,
			WriteByteTimeout:              answerTimeout,
		},
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, len(ls))
	ls = slices.Clone(ls)
	for i := range ls {
		ls[i] = s.connections.listener(ls[i])
		go func() { done <- hs.Serve(ls[i]) }()
	}
	var err error
	running := len(ls)
	select {
	case serr := <-done:
		running--
		err = fmt.Errorf("serve: %w", serr)
	case <-ctx.Done():
	}
	return errors.Join(err, s.drain(ctx, hs, drain, ls), loopsEnded(done, running))
}

// drain ends the listeners first and the connections last. In between, who is connected and asks for
// something new is told UNAVAILABLE: net/http's own shutdown would close the connection without a
// word, and a caller of exec could not know that nothing has run.
func (s *Server) drain(ctx context.Context, hs *http.Server, within time.Duration, ls []net.Listener) error {
	s.draining.Store(true)
	s.leave()
	defer time.AfterFunc(within/2, s.end).Stop()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	for _, l := range ls {
		_ = l.Close() // one that fails to close has failed before
	}
	err := s.connections.quiet(bounded)
	s.connections.expireAll()
	if err == nil {
		err = hs.Shutdown(bounded)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("drain requests: %w", err), hs.Close())
	}
	return nil
}

// loopsEnded collects what the remaining accept loops say; that they were closed is no failure.
func loopsEnded(done <-chan error, running int) (err error) {
	for range running {
		if serr := <-done; !errors.Is(serr, http.ErrServerClosed) && !errors.Is(serr, net.ErrClosed) {
			err = errors.Join(err, fmt.Errorf("serve: %w", serr))
		}
	}
	return err
}
