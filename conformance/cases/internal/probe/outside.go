// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Bounds of the look at a quota.
const (
	chunk     = 4 << 20  // bytes of one write
	overshoot = 16 << 20 // bytes that are tried beyond the bound
	slack     = 4 << 20  // bytes of metadata that a filesystem may take in addition
)

// quota looks for a bound of the workspace: a filesystem of its own that is no larger, or else a
// refusal of what is beyond.
func (b *bench) quota(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if err := b.open(ctx, t); err != nil {
		return without(err)
	}
	bound := t.Spec(target.Spec{}).WorkspaceBytes
	if b.host.Workspace != "" {
		own, err := oracle.StatUsage(b.host.Workspace)
		if err != nil {
			return unknown, "", err
		}
		above, err := oracle.StatUsage(filepath.Dir(b.host.Workspace))
		if err != nil {
			return unknown, "", err
		}
		if own.Device != above.Device && own.BytesTotal <= bound+slack {
			return present, fmt.Sprintf("the workspace is a filesystem of %d bytes, asked for were %d", own.BytesTotal, bound), nil
		}
	}
	written := int64(0)
	for written < bound+overshoot {
		err := b.sandbox.Files().Write(ctx, fmt.Sprintf("probe-quota-%d", written), make([]byte, chunk))
		if target.CodeOf(err) != "" {
			return b.stopped(written, bound, target.CodeOf(err))
		}
		if err != nil {
			return unknown, "", err
		}
		written += chunk
	}
	return absent, fmt.Sprintf("%d bytes fit into a workspace of %d", written, bound), nil
}

// stopped judges a refused write by what lies on the host.
func (b *bench) stopped(written, bound int64, code string) (conformance.Presence, string, error) {
	if b.host.Workspace == "" {
		return present, fmt.Sprintf("a write is refused after %d bytes with %s", written, code), nil
	}
	u, err := oracle.WalkUsage(b.host.Workspace)
	if err != nil {
		return unknown, "", err
	}
	if u.Bytes > bound+slack {
		return absent, fmt.Sprintf("a write is refused with %s, and %d bytes lie in a workspace of %d", code, u.Bytes, bound), nil
	}
	return present, fmt.Sprintf("a write is refused with %s, and %d bytes lie in a workspace of %d", code, u.Bytes, bound), nil
}

// noNetwork reads the interfaces of the sandbox process's namespace.
func (b *bench) noNetwork(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if err := b.open(ctx, t); err != nil {
		return without(err)
	}
	if b.host.Pid != 0 {
		return interfaces(b.host.Pid)
	}
	if b.host.Workspace == "" {
		return unknown, "no process of the sandbox is to be seen from outside", nil
	}
	// A runtime without a lasting process has one while a command runs.
	seen, text, held := unknown, "no process of a running command is to be seen from outside", make(chan error, 1)
	if _, err := b.run(ctx, t, "noop"); err != nil { // the program must be there
		return unknown, "", err
	}
	go func() {
		_, err := b.run(ctx, t, "memory-hog", "-bytes", "1048576", "-hold", hold.String())
		held <- err
	}()
	_, err := attack.Eventually(ctx, hold, func() (bool, error) {
		pid, err := runner(filepath.Join(b.host.Workspace, conformance.TenantProgram))
		if err != nil || pid == 0 {
			return false, err
		}
		s, words, err := interfaces(pid)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // it has ended meanwhile
		}
		seen, text = s, words
		return true, err
	})
	return seen, text, errors.Join(err, <-held)
}

// hold is how long a command is kept running to be looked at.
const hold = 2 * time.Second

// runner finds a process on the host that runs this file, under whatever name; 0 when there is none.
func runner(program string) (int, error) {
	want, err := os.Stat(program)
	if err != nil {
		return 0, err
	}
	all, err := oracle.Processes()
	if err != nil {
		return 0, err
	}
	for pid := range all {
		if is, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && os.SameFile(want, is) {
			return pid, nil
		}
	}
	return 0, nil
}

func interfaces(pid int) (conformance.Presence, string, error) {
	list, err := oracle.Interfaces(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return unknown, "", err
	}
	for _, i := range list {
		if i.Up && !i.Loopback {
			return absent, "the sandbox process's namespace has the interface " + i.Name + ", and it is up", nil
		}
	}
	return present, fmt.Sprintf("of %d interfaces of the sandbox process's namespace, none but a loopback is up", len(list)), nil
}

// notMade is the attack program's exit code when it could not make the attack.
const notMade = 4

// supervisor asks the control socket for its counters, as root in the sandbox.
func (b *bench) supervisor(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if err := b.open(ctx, t); err != nil {
		return without(err)
	}
	if _, err := b.run(ctx, t, "noop"); err != nil { // the program must be there
		return unknown, "", err
	}
	if t.Target().Controller == nil {
		return unknown, "", target.ErrUnavailable
	}
	res, err := t.Target().Controller.Foothold(ctx, b.sandbox.ID(), attack.Command("/workspace/"+conformance.TenantProgram, "control-root", "-mode", "stats"), nil)
	switch {
	case err != nil:
		return unknown, "", err
	case res.ExitCode == 0:
		return present, "the control socket answers root in the sandbox", nil
	case res.ExitCode == notMade:
		return absent, fmt.Sprintf("the control socket does not answer root in the sandbox: %.200s", res.Stderr), nil
	}
	return unknown, fmt.Sprintf("root in the sandbox ended with exit code %d: %.200s", res.ExitCode, res.Stderr), nil
}

// protocol sends one request of the worker API as it should be, and one without authority. Where no
// sandbox can be made, it asks about one that is not there.
func (b *bench) protocol(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if t.Target().Wire == nil {
		return unknown, "", target.ErrUnavailable
	}
	id, workspace := random(16), "ws-"+random(12)
	if b.open(ctx, t) == nil {
		id, workspace = b.sandbox.ID(), b.sandbox.WorkspaceID()
	}
	req := target.RawRequest{Op: "get", Method: "GET", Target: "/v1/sandboxes/" + id, WorkspaceID: workspace, SandboxID: id}
	good, err := t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return unknown, "", err
	}
	req.Token = "a.b.c"
	bad, err := t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return unknown, "", err
	}
	text := fmt.Sprintf("a valid request is answered with status %d %s, one without authority with %d %s", good.Status, good.Code, bad.Status, bad.Code)
	answered := good.Status == 200 || b.refused != nil && good.Code != "" && good.Code != bad.Code
	if !answered || bad.Status < 400 || bad.Code == "" {
		return absent, text, nil
	}
	return present, text, nil
}

// admission asks for an image that is on the engine and that nobody has admitted: the tested one
// with one label more. Without an engine to put it on, it asks for one that nobody has.
func (b *bench) admission(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	socket, err := "", target.ErrUnavailable
	if t.Target().Observer != nil {
		socket, err = t.Target().Observer.EngineSocket()
	}
	if errors.Is(err, target.ErrUnavailable) {
		return b.unheardOf(ctx, t)
	}
	if err != nil {
		return unknown, "", err
	}
	engine, err := oracle.OpenEngine(socket, t)
	if err != nil {
		return unknown, "", err
	}
	parent, err := attack.Parent(t) // by it the target's sweep finds what a killed run left
	if err != nil {
		return unknown, "", err
	}
	plant, err := engine.Make(ctx, oracle.Plant{Image: t.Image(), Argv: []string{"/plant"}, CgroupParent: parent})
	if err != nil {
		return unknown, "", err
	}
	other, err := engine.Commit(ctx, plant, t.Canary("image label"))
	if err != nil {
		return unknown, "", err
	}
	sb, err := t.TrySandbox(ctx, target.Spec{Image: other})
	if err == nil {
		// At once: its image goes before what is left for the end.
		return absent, "a sandbox of an image that nobody admitted was made", sb.Dispose(ctx)
	}
	if target.CodeOf(err) == "" {
		return unknown, "", err
	}
	return present, "an image on the engine that nobody admitted is refused with " + target.CodeOf(err), nil
}

// unheardOf can only show that there is no admission: whoever lacks an image refuses it too, so
// the refusal must be one of admission by its kind.
func (b *bench) unheardOf(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	sb, err := t.TrySandbox(ctx, target.Spec{Image: "sha256:" + random(32)})
	switch {
	case err == nil:
		return absent, "a sandbox of an image that nobody has was made", sb.Dispose(ctx)
	case target.CodeOf(err) == "":
		return unknown, "", err
	case target.KindOf(err) == target.KindUnqualified:
		return present, "an image that nobody has is refused as not admitted, with " + target.CodeOf(err), nil
	}
	return unknown, "an image that nobody has is refused with " + target.CodeOf(err) + ", which says nothing of admission", nil
}

// reconcile orphans the shared sandbox: the runtime is killed and started again, and must remove
// what its predecessor left. The engine says whether it did.
func (b *bench) reconcile(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if t.Target().Controller == nil || t.Target().Observer == nil {
		return unknown, "", target.ErrUnavailable
	}
	if err := b.open(ctx, t); err != nil {
		return without(err)
	}
	if _, err := t.Target().Observer.Container(ctx, b.sandbox.ID()); err != nil {
		return unknown, "", fmt.Errorf("the sandbox before the restart: %w", err)
	}
	if err := t.Target().Controller.Kill(ctx); err != nil {
		return unknown, "", err
	}
	_, orphan := t.Target().Observer.Container(ctx, b.sandbox.ID())
	if err := t.Target().Controller.Start(ctx); err != nil {
		return unknown, "", fmt.Errorf("start the runtime again: %w", err)
	}
	if orphan != nil {
		return unknown, "", fmt.Errorf("the sandbox of the dead runtime: %w", orphan)
	}
	gone, err := attack.Eventually(ctx, 10*time.Second, func() (bool, error) {
		_, err := t.Target().Observer.Container(ctx, b.sandbox.ID())
		if errors.Is(err, target.ErrNoContainer) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return unknown, "", err
	}
	if !gone {
		return absent, "the container that a killed runtime left is still there 10 s after the next start", nil
	}
	return present, "the container that a killed runtime left is removed at the next start", nil
}

// random is n random bytes in hex.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
