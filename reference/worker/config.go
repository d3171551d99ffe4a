// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// maxConfigBytes bounds the configuration file and the key file.
const maxConfigBytes = 1 << 20

// Config is the file of `hallmark-worker serve --config FILE`: strict JSON, no defaults. Paths
// are absolute.
type Config struct {
	WorkerID      string        `json:"workerId"`
	Mode          api.Mode      `json:"mode"`
	Listen        string        `json:"listen"`        // path of a unix socket
	TLS           *TLS          `json:"tls,omitempty"` // a TLS 1.3 listener besides
	StateDir      string        `json:"stateDir"`
	Engine        Engine        `json:"engine"`
	Helpers       Helpers       `json:"helpers"`
	SandboxBinary SandboxBinary `json:"sandboxBinary"`
	Workspaces    Workspaces    `json:"workspaces"`
	Authority     Authority     `json:"authority"`
	SigningKey    string        `json:"signingKey"` // PEM, PKCS #8, Ed25519; mode 0600
	Ceilings      api.Resources `json:"ceilings"`
	Candidates    *Candidates   `json:"candidates,omitempty"` // qualification mode only
	Admission     *Admission    `json:"admission,omitempty"`  // production mode only
	Limits        *Limits       `json:"limits,omitempty"`     // absent: every default
	Metrics       *Metrics      `json:"metrics,omitempty"`    // absent: no metrics are served
	// Credentials says whose secrets this worker delivers; absent: none, and references are refused.
	Credentials *credential.Config `json:"credentials,omitempty"`
	Log         Log                `json:"log"`

	// UnsafeCleartextLoopback is host:port of a listener without TLS: every local user may connect
	// to it and nothing hides the traffic. Loopback addresses only; absent means none.
	UnsafeCleartextLoopback string `json:"unsafeCleartextLoopback,omitempty"`
}

// Engine says which engine and which of its registered runtimes are used.
type Engine struct {
	Socket       string `json:"socket"`
	Runtime      string `json:"runtime"`
	CgroupParent string `json:"cgroupParent"`
	// PidFile names the engine's pid file; needed when another process listens on Socket.
	PidFile string `json:"pidFile,omitempty"`
}

// Helpers are the binaries that the worker copies and runs or mounts from its copy.
type Helpers struct {
	Supervisor string `json:"supervisor"`
	Quota      string `json:"quota"`
}

// SandboxBinary is what must be running as a sandbox.
type SandboxBinary struct {
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

// Workspaces says where workspaces live and what stays free for the host.
type Workspaces struct {
	Dir           string `json:"dir"`
	ReserveBytes  int64  `json:"reserveBytes"`
	ReserveInodes int64  `json:"reserveInodes"`
	// ProjectQuota bounds workspaces by project quota of the file system of Dir; absent: an image each.
	ProjectQuota *ProjectQuota `json:"projectQuota,omitempty"`
}

// ProjectQuota says what Dir is on, and which project ids there are this worker's alone.
type ProjectQuota struct {
	Filesystem string `json:"filesystem"` // ext4 or xfs; the start compares it with the kernel's word
	FirstID    int64  `json:"firstId"`
	LastID     int64  `json:"lastId"`
}

func (q ProjectQuota) validate(ceilings api.Resources) []error {
	var bad []error
	if q.Filesystem != "ext4" && q.Filesystem != "xfs" {
		bad = append(bad, errors.New("workspaces.projectQuota.filesystem is neither ext4 nor xfs"))
	}
	if q.FirstID < project.MinProjectID || q.LastID > project.MaxProjectID || q.FirstID > q.LastID {
		bad = append(bad, fmt.Errorf("workspaces.projectQuota.firstId and lastId are not a range within %d to %d", project.MinProjectID, uint32(project.MaxProjectID)))
	}
	if ceilings.WorkspaceInodes > project.MaxWorkspaceInodes {
		bad = append(bad, fmt.Errorf("ceilings.workspaceInodes is above %d, which is the most with project quota", project.MaxWorkspaceInodes))
	}
	return bad
}

// Authority is whose capabilities count: one key, or two during rotation.
type Authority struct {
	Issuer string         `json:"issuer"`
	Keys   []AuthorityKey `json:"keys"`
}

// AuthorityKey is an Ed25519 public key as 32 bytes in standard base64.
type AuthorityKey struct {
	KID       string `json:"kid"`
	PublicKey []byte `json:"publicKey"`
}

// Candidates are what a qualification worker may start.
type Candidates struct {
	Images   []Candidate `json:"images"`
	CohortID string      `json:"cohortId"`
}

// Candidate is one image under qualification.
type Candidate struct {
	ConfigDigest   string `json:"configDigest"`
	ManifestDigest string `json:"manifestDigest"`
}

// Admission says where a production worker finds pins, policy and evidence.
type Admission struct {
	Root     string   `json:"root"`
	Trust    string   `json:"trust"`
	Pins     string   `json:"pins"`
	Bundles  []string `json:"bundles"`
	StateDir string   `json:"stateDir"`
}

// Log is where the log goes; an empty path is standard error.
type Log struct {
	Path string `json:"path"`
}

// Metrics says where metrics are served: never on the listener of the API, and on this host only.
type Metrics struct {
	// Listen is the path of a unix socket, or a loopback address in digits with its port.
	Listen string `json:"listen"`
}

// Network returns network and address for [net.Listen]; both are empty when Listen is neither form.
func (m Metrics) Network() (network, address string) {
	if filepath.IsAbs(m.Listen) {
		return "unix", m.Listen
	}
	// A name could resolve to anything; only digits say what is listened on.
	if at, err := netip.ParseAddrPort(m.Listen); err == nil && at.Addr().IsLoopback() && at.Port() != 0 {
		return "tcp", m.Listen
	}
	return "", ""
}

// LoadConfig reads and checks a configuration file. The error names every problem.
func LoadConfig(path string) (Config, error) {
	b, err := ReadConfig(path)
	if err != nil {
		return Config{}, err
	}
	c, err := ParseConfig(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ReadConfig returns the text of a configuration file of at most 1 MiB.
func ReadConfig(path string) ([]byte, error) { return readBounded(path) }

// ParseConfig decodes and checks the text of a configuration file.
func ParseConfig(text []byte) (Config, error) {
	var c Config
	if err := strictjson.Unmarshal(text, &c, strictjson.Limits{Bytes: maxConfigBytes, Depth: 8, StringBytes: 64 << 10}); err != nil {
		return Config{}, fmt.Errorf("decode: %w", err)
	}
	return c, c.Validate()
}

// Validate returns all problems, joined.
func (c Config) Validate() error {
	var bad []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf(format, args...))
		}
	}
	need(api.ValidID(c.WorkerID), "workerId is not an identifier")
	need(c.Mode == api.Qualification || c.Mode == api.Production, "mode is neither qualification nor production")
	paths := []struct{ name, value string }{
		{"listen", c.Listen}, {"stateDir", c.StateDir}, {"engine.socket", c.Engine.Socket},
		{"helpers.supervisor", c.Helpers.Supervisor}, {"helpers.quota", c.Helpers.Quota},
		{"sandboxBinary.path", c.SandboxBinary.Path}, {"workspaces.dir", c.Workspaces.Dir}, {"signingKey", c.SigningKey},
	}
	if c.TLS != nil {
		bad = append(bad, c.TLS.validate()...)
	}
	if c.UnsafeCleartextLoopback != "" {
		_, err := loopback(c.UnsafeCleartextLoopback)
		need(err == nil, "unsafeCleartextLoopback is not a loopback address with a port")
	}
	if a := c.Admission; a != nil {
		paths = append(paths, []struct{ name, value string }{
			{"admission.root", a.Root}, {"admission.trust", a.Trust}, {"admission.pins", a.Pins}, {"admission.stateDir", a.StateDir},
		}...)
		need(len(a.Bundles) > 0, "admission.bundles is empty")
		for _, b := range a.Bundles {
			need(filepath.IsAbs(b), "admission.bundles holds %q, not an absolute path", b)
		}
	}
	if c.Engine.PidFile != "" {
		paths = append(paths, struct{ name, value string }{"engine.pidFile", c.Engine.PidFile})
	}
	if c.Log.Path != "" {
		paths = append(paths, struct{ name, value string }{"log.path", c.Log.Path})
	}
	for _, p := range paths {
		need(filepath.IsAbs(p.value), "%s is not an absolute path", p.name)
	}
	if m := c.Metrics; m != nil {
		network, address := m.Network()
		need(network != "", "metrics.listen is neither an absolute path nor a loopback address with a port, such as 127.0.0.1:9464")
		need(network != "unix" || len(address) < 108, "metrics.listen is longer than a socket path can be")
		need(filepath.Clean(m.Listen) != filepath.Clean(c.Listen), "metrics.listen is the listener of the API")
	}
	if c.Credentials != nil {
		if err := c.Credentials.Validate(); err != nil {
			bad = append(bad, err)
		}
	}
	if c.Limits != nil {
		if err := c.Limits.validate(); err != nil {
			bad = append(bad, err)
		}
	}
	// sockaddr_un(7): sun_path is 108 bytes with its NUL.
	need(len(c.Listen) < 108, "listen is longer than a socket path can be")
	need(c.Engine.CgroupParent != "", "engine.cgroupParent is empty")
	need(api.ValidID(c.Engine.Runtime), "engine.runtime is not the name of a runtime")
	need(api.ValidDigest(c.SandboxBinary.Digest), "sandboxBinary.digest is not a digest")
	need(c.Workspaces.ReserveBytes >= 0 && c.Workspaces.ReserveInodes >= 0, "workspaces.reserveBytes or workspaces.reserveInodes is negative")
	if q := c.Workspaces.ProjectQuota; q != nil {
		bad = append(bad, q.validate(c.Ceilings)...)
	}
	need(c.Authority.Issuer != "", "authority.issuer is empty")
	need(len(c.Authority.Keys) == 1 || len(c.Authority.Keys) == 2, "authority.keys holds %d keys, one or two are needed", len(c.Authority.Keys))
	for _, k := range c.Authority.Keys {
		need(api.ValidID(k.KID) && len(k.PublicKey) == ed25519.PublicKeySize, "authority.keys holds a malformed key")
	}
	if err := c.Ceilings.Positive(); err != nil {
		bad = append(bad, fmt.Errorf("ceilings: %w", errors.Unwrap(err)))
	}
	need((c.Candidates != nil) == (c.Mode == api.Qualification), "candidates belong to qualification mode, and to it alone")
	need((c.Admission != nil) == (c.Mode == api.Production), "admission belongs to production mode, and to it alone")
	if q := c.Candidates; q != nil {
		need(api.ValidDigest(q.CohortID), "candidates.cohortId is not a digest")
		need(len(q.Images) > 0, "candidates.images is empty")
		for _, i := range q.Images {
			need(api.ValidDigest(i.ConfigDigest) && api.ValidDigest(i.ManifestDigest), "candidates.images holds one that is not given by digests")
		}
	}
	return errors.Join(bad...)
}

// SecurityDocument is the canonical text of the configuration that evidence is about, the same
// in both modes: what this worker offers and within which bounds. Names, paths and keys are
// not in it, nor are reserves, which only ever refuse more, nor providers and bindings: that
// secrets are delivered at all is a feature, whose they are differs from worker to worker.
func (c Config) SecurityDocument() ([]byte, error) {
	backend, filesystem := c.Quota()
	return strictjson.Canonical(struct {
		Schema          string     `json:"schema"`
		ProtocolVersion string     `json:"protocolVersion"`
		Features        []string   `json:"features"`
		Limits          api.Limits `json:"limits"`
		TokenSeconds    int64      `json:"tokenSeconds"`
		QuotaBackend    string     `json:"quotaBackend"`
		QuotaFilesystem string     `json:"quotaFilesystem"`
		Cleartext       bool       `json:"unsafeCleartextLoopback,omitzero"` // so that evidence without it does not admit it
	}{
		"hallmark.security-config.v1", api.ProtocolVersion, c.Features(), c.EffectiveLimits(), api.MaxTokenSeconds, backend, filesystem,
		c.UnsafeCleartextLoopback != "",
	})
}

// Quota returns what workspaces are bounded by, and on which file system, in the words of a cohort.
func (c Config) Quota() (backend, filesystem string) {
	if q := c.Workspaces.ProjectQuota; q != nil {
		return "prjquota", q.Filesystem
	}
	return "loop", "ext4"
}

// VerifierKeys returns the authority's keys.
func (c Config) VerifierKeys() []capability.Key {
	var out []capability.Key
	for _, k := range c.Authority.Keys {
		out = append(out, capability.Key{ID: k.KID, Public: ed25519.PublicKey(k.PublicKey)})
	}
	return out
}

// LoadSigningKey reads the worker's own key. A file that others can read is refused.
func LoadSigningKey(path string) (ed25519.PrivateKey, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("inspect signing key: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("signing key has mode %#o, 0600 is needed", st.Mode().Perm())
	}
	b, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	key, err := capability.ParsePrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	return key, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(b) > maxConfigBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxConfigBytes)
	}
	return b, nil
}
