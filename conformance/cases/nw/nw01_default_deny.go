// SPDX-License-Identifier: Apache-2.0

package nw

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// external are addresses that nobody in the lab has: documentation prefixes (RFC 5737, RFC 3849),
// the metadata service, and a multicast group.
var external = []string{
	"tcp://" + oracle.OutsideAddress + ":443", "udp://" + oracle.OutsideAddress + ":53", "quic://" + oracle.OutsideAddress + ":443", "icmp://" + oracle.OutsideAddress,
	"tcp://169.254.169.254:80", "tcp://[2001:db8::9]:443", "udp://[2001:db8::9]:53", "udp://224.0.0.251:5353", "packet://",
}

// NW01 tries to send anything to anybody.
var NW01 = conformance.Case{
	ID: "NW-01", Revision: 2, Title: "Default-deny egress",
	Requirement: "Nothing that a tenant sends leaves the sandbox.",
	Threat:      "Data leaves, or the sandbox attacks the network it sits in.",
	Attack:      "TCP, UDP, QUIC-shaped UDP, ICMP, raw and packet sockets to every address of the engine's network namespace, to a sink that stands for the outside, and to addresses that nobody has.",
	Witness:     "TCP, UDP and QUIC-shaped attempts that were sent, or that the sandbox's own network refused (all, but for an address family that the sandbox lacks). ICMP, raw and packet sockets may be refused before that: recorded.",
	Oracle:      "Listeners and a capture of every interface in the engine's network namespace, by token and by destination; the interfaces that are up in the sandbox process's namespace, read from the host. Arming: a container on the lab's network is seen by each.",
	Precedent:   "agent-sandbox#263, #287",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 45 * time.Second,
	Exclusive: true, // the trap and its capture are of the engine's whole network namespace
	Features:  []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureNoNetwork},
	Needs:     []conformance.Part{conformance.PartNetwork, conformance.PartEngine},
	Oracles:   []conformance.Oracle{conformance.OracleNetwork},
	Kills:     []conformance.Kill{{Mutant: "m31", Reason: "packet-seen"}},
	Run:       runNW01,
}

func runNW01(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	namespace, err := t.Target().Observer.NetworkNamespace()
	if err != nil {
		return err
	}
	trap, err := oracle.SetTrap(namespace, t.Canary("packet"))
	if err != nil {
		return err
	}
	defer trap.Close()
	targets := append(trap.Targets(), external...)
	outside, err := destinations(external)
	if err != nil {
		return err
	}
	trap.Watch(outside...)

	// Attack.
	o, err := attack.Must(ctx, sb, target.Command{
		Argv:    attack.Command(program, append([]string{"network", "-token", trap.Token(), "-wait", "100ms"}, targets...)...),
		Timeout: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	// A packet that is under way needs no time worth naming inside one machine; the capture's
	// queue is read within its own period of 100 ms.
	if _, err := attack.Eventually(ctx, 300*time.Millisecond, func() (bool, error) { return trap.Counts()["attack"] > 0, nil }); err != nil {
		return err
	}
	interfaces, err := oracle.Interfaces(fmt.Sprintf("/proc/%d/ns/net", c.Pid))
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "network", o.Report)
	for _, scheme := range []string{"tcp", "udp", "quic"} {
		need := -o.Report.Counts["no-family "+scheme]
		for _, where := range targets {
			if strings.HasPrefix(where, scheme+"://") {
				need++
			}
		}
		t.NeedWitness("attempts "+scheme, max(need, 1))
		t.Witness("attempts "+scheme, o.Report.Counts["attempts "+scheme])
	}
	counts := trap.Counts()
	t.Observe("outcomes", o.Report.Errno)
	t.Observe("trap", counts)
	t.Observe("targets", targets)
	t.Observe("interfaces", interfaces)
	if raw, err := json.Marshal(trap.Events()); err == nil {
		t.Artifact("trap.json", raw)
	}

	// Verdict: the count, which nothing bounds; the kept events only say who.
	if n := counts["attack"]; n > 0 {
		seen := trap.Seen()
		t.Fail("packet-seen", "%d packets or connections arrived, the first by %s from %s", n, seen[0].From, seen[0].Peer)
	}
	for _, i := range interfaces {
		if i.Up && !i.Loopback {
			t.Fail("interface-present", "the sandbox process's namespace has the interface %s, and it is up", i.Name)
		}
	}
	return nil
}

// destinations are the addresses in targets, each once.
func destinations(targets []string) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, target := range targets {
		_, where, _ := strings.Cut(target, "://")
		if where == "" {
			continue // a frame has no address: its ethertype is known
		}
		addr, err := netip.ParseAddr(where)
		if err != nil {
			port, perr := netip.ParseAddrPort(where)
			if perr != nil {
				return nil, fmt.Errorf("destination %q: %w", target, perr)
			}
			addr = port.Addr()
		}
		list = append(list, addr)
	}
	return list, nil
}
