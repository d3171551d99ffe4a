// SPDX-License-Identifier: Apache-2.0

package nw

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
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
	ID: "NW-01", Revision: 1, Title: "Default-deny egress",
	Requirement: "Nothing that a tenant sends leaves the sandbox.",
	Threat:      "Data leaves, or the sandbox attacks the network it sits in.",
	Attack:      "TCP, UDP, QUIC-shaped UDP, ICMP, raw and packet sockets to every address of the engine's network namespace, to a sink that stands for the outside, and to addresses that nobody has.",
	Witness:     "Attempts that were made (all).",
	Oracle:      "Listeners and a capture of every interface in the engine's network namespace; the interfaces in the sandbox process's namespace, read from the host. Arming: a container on the lab's network is seen by each.",
	Precedent:   "agent-sandbox#263, #287",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 45 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureNoNetwork},
	Needs:    []conformance.Part{conformance.PartNetwork, conformance.PartEngine},
	Oracles:  []conformance.Oracle{conformance.OracleNetwork},
	Kills:    []conformance.Kill{{Mutant: "m31", Reason: "packet-seen"}},
	Run:      runNW01,
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
	if _, err := attack.Eventually(ctx, 300*time.Millisecond, func() (bool, error) { return len(trap.Seen()) > 0, nil }); err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "network", o.Report)
	t.NeedWitness("attempts", int64(len(targets)))
	t.Witness("attempts", o.Report.Counts["attempts"])
	interfaces, err := interfacesOf(c.Pid)
	if err != nil {
		return err
	}
	t.Observe("trap", trap.Counts())
	t.Observe("targets", targets)
	t.Observe("interfaces", interfaces)
	if raw, err := json.Marshal(trap.Events()); err == nil {
		t.Artifact("trap.json", raw)
	}

	// Verdict.
	if seen := trap.Seen(); len(seen) > 0 {
		t.Fail("packet-seen", "%d packets or connections arrived, the first by %s from %s", len(seen), seen[0].From, seen[0].Peer)
	}
	for _, name := range interfaces {
		if name != "lo" {
			t.Fail("interface-present", "the sandbox process's namespace has the interface %s", name)
		}
	}
	return nil
}

// interfacesOf reads the interface names in a host process's network namespace.
func interfacesOf(pid int) ([]string, error) {
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return nil, err
	}
	names := []string{}
	for line := range strings.SplitSeq(string(body), "\n") {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names, nil
}
