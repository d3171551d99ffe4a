// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ed25519"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

// form is what a member's value looks like: how to put it right, and how to show it. A value that
// does not have its form is never shown: it may be something else that was put there by mistake,
// a key for instance.
type form struct {
	remedy string
	show   func(v any) (text string, ok bool)
}

func forms() map[string]form {
	text := func(good func(string) bool) func(any) (string, bool) {
		return func(v any) (string, bool) {
			s := reflect.ValueOf(v).String()
			return s, good(s)
		}
	}
	plain := func(s string) bool {
		return s != "" && len(s) <= 256 && strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r > 0x7e }) < 0
	}
	list := func(good func(string) bool) func(any) (string, bool) {
		return func(v any) (string, bool) {
			all := v.([]string)
			for _, s := range all {
				if !good(s) {
					return "", false
				}
			}
			return strings.Join(all, ", "), len(all) > 0
		}
	}
	path := func(s string) bool { return plain(s) && filepath.IsAbs(s) }
	address := func(s string) bool { _, _, err := net.SplitHostPort(s); return plain(s) && err == nil }
	number := func(v any) (string, bool) { return fmt.Sprint(v), reflect.ValueOf(v).Int() >= 0 }
	return map[string]form{
		"id":      {"give an identifier: letters, digits and ._:- , at most 128 of them", text(api.ValidID)},
		"ids":     {"give a list of identifiers: letters, digits and ._:- , at most 128 each", list(api.ValidID)},
		"names":   {"give a list of names", list(plain)},
		"mode":    {"give \"production\" or \"qualification\"", text(func(s string) bool { return s == string(api.Production) || s == string(api.Qualification) })},
		"quotafs": {"give \"ext4\" or \"xfs\"", text(func(s string) bool { return s == "ext4" || s == "xfs" })},
		"path":    {"give an absolute path", text(path)},
		"paths":   {"give a list of absolute paths", list(path)},
		"log":     {"give an absolute path, or \"\" for standard error", text(func(s string) bool { return s == "" || path(s) })},
		"address": {"give host:port", text(address)},
		"listen":  {"give an absolute path, or a loopback address with a port such as 127.0.0.1:9464", text(func(s string) bool { return path(s) || address(s) })},
		"digest":  {"give a digest: sha256: and 64 lower-case hexadecimal digits", text(api.ValidDigest)},
		"text":    {"give a text", text(plain)},
		"count":   {"give a whole number above 0", number},
		"bytes": {"give a whole number of bytes", func(v any) (string, bool) {
			n := reflect.ValueOf(v).Int()
			return size(n), n >= 0
		}},
		// A fingerprint says which key it is as well as the key does, and is what a receipt shows.
		"key": {"give the 32 bytes of an Ed25519 public key in standard base64", func(v any) (string, bool) {
			b := v.([]byte)
			return "key with fingerprint " + capability.KeyID(b)[:16], len(b) == ed25519.PublicKeySize
		}},
		// What follows the program may be anything, a token for instance.
		"argv": {"give a list that begins with an absolute path", func(v any) (string, bool) {
			all := v.([]string)
			if len(all) == 0 || !path(all[0]) {
				return "", false
			}
			return fmt.Sprintf("%s and %d arguments that are not shown", all[0], len(all)-1), true
		}},
		"group": {remedy: "write it as an object with the members below"},
		"list":  {remedy: "write it as a list of objects with the members below"},
	}
}

// size writes bytes as people read them.
func size(n int64) string {
	for _, unit := range []struct {
		name string
		of   int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= unit.of && n%unit.of == 0 {
			return fmt.Sprintf("%d (%d %s)", n, n/unit.of, unit.name)
		}
	}
	return fmt.Sprint(n)
}

// member is one member of the configuration.
type member struct {
	path    string // as in engine.socket, authority.keys[].kid
	form    string // of forms
	meaning string
	absent  string // what holds without it; "" for one that is needed
}

// members explains every member, in the order of the file. A test compares it with the type.
func members() []member {
	limit := func(n int64) string { return fmt.Sprintf("default %d", n) }
	def := bounds()
	return []member{
		{"workerId", "id", "The name of this worker: what capabilities are addressed to, and the label of its containers. No two workers of a control plane have the same.", ""},
		{"mode", "mode", "production starts only what pins and evidence admit; qualification starts candidates, so that evidence can be made, and is never used for tenants.", ""},
		{"listen", "path", "The unix socket of the API, made with mode 0600: only the worker's own user can connect.", ""},
		{"tls", "group", "A TLS 1.3 listener of the API besides the socket.", "no such listener"},
		{"tls.address", "address", "Where it listens.", ""},
		{"tls.certificate", "path", "PEM file of the certificate chain, the worker's own first. Read again at each handshake.", ""},
		{"tls.key", "path", "PEM file of its private key. Read again at each handshake; the key itself is never shown.", ""},
		{"tls.clientCAs", "path", "PEM file of the authorities that sign client certificates.", "clients need no certificate; capabilities are needed in any case"},
		{"tls.clientNames", "names", "Names of which a client's certificate must have one.", "none; needed together with tls.clientCAs"},
		{"stateDir", "path", "What the worker must not forget: consumed nonces, leases, outcomes, and its copies of the helpers. One worker and one mode each; mode 0700.", ""},
		{"engine", "group", "The container engine.", ""},
		{"engine.socket", "path", "Its unix socket.", ""},
		{"engine.runtime", "id", "The runtime, by the name under which the engine has it registered. The engine's default is never used.", ""},
		{"engine.cgroupParent", "text", "The cgroup under which sandboxes are bounded.", ""},
		{"engine.pidFile", "path", "Its pid file; needed when another process listens on its socket.", "the process that listens on the socket"},
		{"helpers", "group", "Programs that the worker copies by digest and runs, or mounts into sandboxes, from its copy.", ""},
		{"helpers.supervisor", "path", "hallmark-supervisor, the first process of a sandbox.", ""},
		{"helpers.quota", "path", "hallmark-quota, which makes and bounds workspaces.", ""},
		{"sandboxBinary", "group", "What must be running as a sandbox.", ""},
		{"sandboxBinary.path", "path", "The binary of the runtime.", ""},
		{"sandboxBinary.digest", "digest", "Its digest; the worker does not start, and starts nothing, with another.", ""},
		{"workspaces", "group", "Where the data of tenants is.", ""},
		{"workspaces.dir", "path", "The directory of workspaces, or of their images. One worker each.", ""},
		{"workspaces.reserveBytes", "bytes", "Room on that file system that stays free for the host; a tenth of it does in any case.", ""},
		{"workspaces.reserveInodes", "count", "The same in inodes.", ""},
		{"workspaces.projectQuota", "group", "Workspaces are directories under project quota, which the kernel must enforce where workspaces.dir is. That file system is mounted with nosuid,nodev.", "each workspace is an ext4 image"},
		{"workspaces.projectQuota.filesystem", "quotafs", "What that file system is.", ""},
		{"workspaces.projectQuota.firstId", "count", "The first of the project ids that are this worker's alone; the engine counts up from 1, and 1048576 is the least.", ""},
		{"workspaces.projectQuota.lastId", "count", "The last of them, at most 4294967294. Each workspace takes one.", ""},
		{"authority", "group", "Whose capabilities count.", ""},
		{"authority.issuer", "text", "What a capability names as its issuer.", ""},
		{"authority.keys", "list", "One key, or two during rotation.", ""},
		{"authority.keys[].kid", "id", "The id under which capabilities name it.", ""},
		{"authority.keys[].publicKey", "key", "The key.", ""},
		{"signingKey", "path", "PEM file (PKCS #8, Ed25519, mode 0600) of the worker's own private key, which signs receipts and health. The key itself is never shown.", ""},
		{"ceilings", "group", "The most that one sandbox may ask for. Evidence is about these: those of the qualified run are needed.", ""},
		{"ceilings.cpus", "count", "Thousandths of a processor.", ""},
		{"ceilings.memoryBytes", "bytes", "Memory.", ""},
		{"ceilings.pids", "count", "Processes and threads.", ""},
		{"ceilings.workspaceBytes", "bytes", "Data of a workspace.", ""},
		{"ceilings.workspaceInodes", "count", "Files and directories of a workspace.", ""},
		{"candidates", "group", "What a worker in qualification mode may start. It has no place in production.", "none; needed in qualification mode"},
		{"candidates.images", "list", "The images under qualification.", ""},
		{"candidates.images[].configDigest", "digest", "What the wire calls the image.", ""},
		{"candidates.images[].manifestDigest", "digest", "What a registry calls it.", ""},
		{"candidates.cohortId", "digest", "The cohort that the run measured.", ""},
		{"admission", "group", "What admits images in production mode. It has no place in qualification.", "none; needed in production mode"},
		{"admission.root", "path", "The public key that the trust policy is signed with.", ""},
		{"admission.trust", "path", "The trust policy: whose evidence counts, and for how long.", ""},
		{"admission.pins", "path", "The pins, as `hallmark gate` wrote them.", ""},
		{"admission.bundles", "paths", "The evidence behind the pins.", ""},
		{"admission.stateDir", "path", "Where the worker remembers the newest policy and pins, so that older ones cannot come back.", ""},
		{"limits", "group", "Bounds that may be moved. Health reports them, and evidence is about them.", "every default"},
		{"limits.nonces", "count", "Capabilities that are remembered as used; when they are full, requests are refused. Each costs about 300 bytes of memory and of disk.", limit(def["nonces"])},
		{"limits.noncesPerWorkspace", "count", "How many of them one workspace may have.", limit(def["noncesPerWorkspace"])},
		{"limits.connections", "count", "Connections to the API that are served at once, over all listeners.", limit(def["connections"])},
		{"limits.creates", "count", "Sandboxes that are made at once.", limit(def["creates"])},
		{"limits.execs", "count", "Invocations at once, over all sandboxes.", limit(def["execs"])},
		{"limits.execsPerSandbox", "count", "Invocations at once in one sandbox.", limit(def["execsPerSandbox"])},
		{"metrics", "group", "Metrics in the Prometheus text format, never on a listener of the API.", "no metrics are served"},
		{"metrics.listen", "listen", "A unix socket, made with mode 0600, or a loopback address, which every local user can read. The page is /metrics.", ""},
		{"credentials", "group", "Whose secrets this worker delivers. It holds no secret itself.", "none, and references to credentials are refused"},
		{"credentials.providers", "list", "Where secrets come from.", ""},
		{"credentials.providers[].providerId", "id", "The name under which requests refer to it.", ""},
		{"credentials.providers[].kind", "text", "file or exec.", ""},
		{"credentials.providers[].dir", "path", "Of kind file: the directory, this user's, with mode 0700.", "none; needed for kind file"},
		{"credentials.providers[].argv", "argv", "Of kind exec: the program and its arguments; nothing is added.", "none; needed for kind exec"},
		{"credentials.providers[].timeoutMs", "count", "Of kind exec: how long it may take, in milliseconds.", "none; needed for kind exec"},
		{"credentials.bindings", "list", "What a provider may give to whom.", ""},
		{"credentials.bindings[].bindingId", "id", "The name under which requests refer to it.", ""},
		{"credentials.bindings[].providerId", "id", "The provider.", ""},
		{"credentials.bindings[].category", "text", "What is behind it.", ""},
		{"credentials.bindings[].kind", "text", "What kind of secret it is. Those of model providers are never delivered.", ""},
		{"credentials.bindings[].fields", "ids", "The fields that may be delivered.", ""},
		{"credentials.bindings[].workspaces", "ids", "The workspaces that may have them.", "every workspace that the secret's own scope names"},
		{"log", "group", "The log: one JSON text per line.", ""},
		{"log.path", "log", "Its file, made with mode 0600 and opened again on SIGHUP; empty is standard error.", ""},
		{"unsafeCleartextLoopback", "address", "A loopback listener of the API WITHOUT TLS: every local user may connect, and nothing hides the traffic.", "no such listener"},
	}
}
