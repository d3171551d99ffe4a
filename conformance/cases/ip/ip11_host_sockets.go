// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// ip11Depth is how deep a folder that is mounted into the sandbox is searched for sockets on the host: a
// daemon's socket lies in its folder, or one below.
const ip11Depth = 2

// IP11 looks for the host's sockets.
var IP11 = conformance.Case{
	ID: "IP-11", Revision: 1, Title: "Reachable host sockets",
	Requirement: "No socket of the host is in the sandbox or can be connected to from it, by path, by mount or by abstract name.",
	Threat:      "The engine's socket, a shim, an agent or a bus gives whoever reaches it the host.",
	Attack:      "The tenant connects, as stream, datagram and packet, to twenty paths of well-known daemons, to every socket that a walk of its filesystem finds, to every abstract name that its kernel lists, and to two abstract names that the suite listens at on the host: in its own network namespace and in the engine's.",
	Witness:     "Sockets that the attack had planted for itself and found by the walk (1) and connected to (2); paths and names that it tried (at least 22).",
	Oracle:      "The suite's listeners on the host count who comes. Where there is an engine: the sources of the container's mounts, searched for sockets on the host. What the tenant found or connected to besides counts against the target.",
	Precedent:   "CVE-2020-15257; Kilocode#11650; sandbox-runtime#429",
	Tier:        conformance.Full, Control: true, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Oracles:  []conformance.Oracle{conformance.OracleHostSocket},
	Kills:    []conformance.Kill{{Mutant: "m73", Reason: "host-socket-mounted"}},
	Run:      runIP11,
}

func runIP11(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	has := func(p conformance.Part) bool { return slices.Contains(t.Target().Parts, string(p)) }
	namespaces := []string{""}
	if has(conformance.PartNetwork) {
		ns, err := t.Target().Observer.NetworkNamespace()
		if err != nil {
			return err
		}
		namespaces = append(namespaces, ns)
	}
	argv := attack.Command(program, "sockets")
	var listeners []*oracle.HostSocket
	for _, ns := range namespaces {
		name := "hallmark-host-" + rand.Text()
		l, err := oracle.ListenAbstract(ns, name)
		if err != nil {
			return err
		}
		t.Cleanup(func(context.Context) error { return l.Close() })
		listeners, argv = append(listeners, l), append(argv, name)
	}
	// Attack.
	o, err := attack.Must(ctx, sb, target.Command{Argv: argv, Timeout: 40 * time.Second})
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "sockets", o.Report)
	for name, least := range map[string]int64{"planted-found": 1, "planted-connected": 2, "tried": int64(20 + len(listeners))} {
		t.NeedWitness(name, least)
		t.Witness(name, o.Report.Counts[name])
	}
	t.Observe("sockets", o.Report.Counts)

	// Verdict.
	if has(conformance.PartEngine) && has(conformance.PartWorkspacePath) {
		if err := judgeMounts(ctx, t, sb); err != nil {
			return err
		}
	}
	came := int64(0)
	for _, l := range listeners {
		came += l.Came()
	}
	if came > 0 {
		t.Fail("host-name-reachable", "%d connections from the sandbox came to abstract names of the host", came)
	}
	if n := o.Report.Counts["connected"]; n > 0 {
		t.Fail("socket-reachable", "the tenant connected to %d sockets that are not its own: %v", n, o.Report.Facts)
	}
	if n := o.Report.Counts["mounted"]; n > 0 {
		t.Fail("socket-mounted", "%d mounts in the sandbox are sockets: %v", n, o.Report.Facts)
	}
	return nil
}

// judgeMounts looks on the host at what the engine has mounted into the sandbox. The workspace is the
// tenant's: what it makes there may be visible on the host and is none of the host's.
func judgeMounts(ctx context.Context, t *conformance.T, sb target.Sandbox) error {
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	f, found, err := engine.Inspect(ctx, c.ID)
	if err != nil || !found {
		return fmt.Errorf("inspect the sandbox: found %v, %w", found, err)
	}
	t.Observe("mounts-on-host", len(f.Mounts))
	for _, source := range f.Mounts {
		if source == c.Workspace {
			continue
		}
		sockets, err := oracle.SocketsAt(source, ip11Depth)
		if err != nil {
			return err
		}
		if len(sockets) > 0 {
			t.Fail("host-socket-mounted", "a mount of the sandbox holds %d sockets of the host", len(sockets))
		}
	}
	return nil
}
