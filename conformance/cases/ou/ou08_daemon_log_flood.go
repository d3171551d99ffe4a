// SPDX-License-Identifier: Apache-2.0

package ou

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of OU-08. An engine writes its own small configuration files anew as it likes.
const (
	ou08Slack   = 64 << 10
	ou08Daemon  = 256 << 10 // that the runtime's own logs may gain in the whole case
	ou08Span    = 3 * time.Second
	ou08PerSec  = 10 // lines of PID 1 about refused connections, as the supervisor promises
	ou08Burst   = 30 // of the seconds at both ends, and of what else it has to say
	ou08Refused = 50 // connections that must have been refused
	ou08Heard   = 500
)

// OU08 makes noise wherever somebody may keep it.
var OU08 = conformance.Case{
	ID: "OU-08", Revision: 1, Title: "Daemon log flood",
	Requirement: "What PID 1 prints is kept by nobody, or within a bound that the create request names; a tenant reaches no log, and what it makes the supervisor and the worker say is limited.",
	Threat:      "A tenant fills the host's disk through the engine's log of its container, which no quota counts.",
	Attack:      "2 MiB to each of PID 1's descriptors, consoles, terminals, the kernel's buffer and system loggers, as the tenant and as root in the sandbox; where there is a control socket, 3 s of connections that are refused and audited.",
	Witness:     "Ways that were tried, by the tenant and by root (at least 20 each); bytes of PID 1 that the engine handed to a listener (at least 500); refused connections, where there is a control socket (at least 50).",
	Oracle:      "The engine's word on the container's log driver, and the create request on the tape; the files that the engine has of the container, by size, before and after; lines that a listener hears of PID 1; the sizes of the runtime's own logs.",
	Precedent:   "QWED#338; moby#16297; for-linux#985",
	Tier:        conformance.Full, Control: true, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartEngine, conformance.PartFoothold},
	Oracles:  []conformance.Oracle{conformance.OracleEngine, conformance.OracleEngineLog},
	Kills:    []conformance.Kill{{Mutant: "m24", Reason: "log-unbounded"}},
	Run:      runOU08,
}

func runOU08(ctx context.Context, t *conformance.T) error {
	// Arrange.
	taped := slices.Contains(t.Target().Parts, string(conformance.PartTape))
	var mark int64
	if taped {
		var err error
		if _, mark, err = t.Target().Observer.Tape(0); err != nil {
			return err
		}
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	log, err := engine.Log(ctx, c.ID)
	if err != nil {
		return err
	}
	before, err := engine.ContainerFiles(ctx, c.ID)
	if err != nil {
		return err
	}
	logsBefore, err := ou08LogBytes(t)
	if err != nil {
		return err
	}
	soFar, stop, err := engine.Listen(ctx, c.ID)
	if err != nil {
		return err
	}
	defer stop()

	// Attack.
	tenant, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "log-flood"), Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	root, err := attack.Foothold(ctx, t, sb, "log-flood")
	if err != nil {
		return err
	}
	quiet := soFar()
	said, err := t.Target().Runtime.Describe(ctx)
	if err != nil {
		return err
	}
	supervised := slices.Contains(said.Claims, string(conformance.FeatureSupervisor))
	took := time.Duration(0)
	if supervised {
		first, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
		if err != nil {
			return err
		}
		start := time.Now()
		if _, err := attack.Foothold(ctx, t, sb, "log-flood", "-refused", "-time", ou08Span.String()); err != nil {
			return err
		}
		last, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
		if err != nil {
			return err
		}
		took = time.Since(start)
		t.NeedWitness("refused-connections", ou08Refused)
		t.Witness("refused-connections", last.Counts["refused.gid"]-first.Counts["refused.gid"])
		t.Observe("lines suppressed", last.Counts["audit-dropped"]-first.Counts["audit-dropped"])
	}
	// What was printed last is on its way to the listener.
	if _, err := attack.Eventually(ctx, 3*time.Second, func() (bool, error) { return soFar().Bytes >= ou08Heard, nil }); err != nil {
		return err
	}
	heard := soFar()
	stop()

	// Witness.
	attack.Witness(t, "tenant", tenant.Report)
	attack.Witness(t, "root", root)
	t.NeedWitness("ways-of-the-tenant", 20)
	t.Witness("ways-of-the-tenant", tenant.Report.Counts["attempts"])
	t.NeedWitness("ways-of-root", 20)
	t.Witness("ways-of-root", root.Counts["attempts"])
	t.NeedWitness("bytes-of-pid-1", ou08Heard)
	t.Witness("bytes-of-pid-1", heard.Bytes)
	after, err := engine.ContainerFiles(ctx, c.ID)
	if err != nil {
		return err
	}
	logsAfter, err := ou08LogBytes(t)
	if err != nil {
		return err
	}
	grown := oracle.Grown(before, after)
	t.Observe("log", map[string]any{"driver": log.Driver, "bound": log.Bound, "grownBytes": grown, "bytesByTenant": tenant.Report.Counts["bytes"], "bytesByRoot": root.Counts["bytes"]})
	t.Observe("heard", map[string]any{"bytes": heard.Bytes, "lines": heard.Lines, "linesOfFloods": quiet.Lines, "first": heard.First, "refusedForMs": took.Milliseconds()})
	t.Observe("daemon log bytes", logsAfter-logsBefore)

	// Verdict.
	if log.Bound >= oracle.Unlimited {
		t.Fail("log-unbounded", "the engine keeps what PID 1 prints with the log driver %s, and nothing bounds it", log.Driver)
	}
	if taped {
		if err := ou08Asked(t, mark); err != nil {
			return err
		}
	}
	if grown > log.Bound+ou08Slack {
		t.Fail("log-grew", "the engine's files of the container grew by %d bytes, bound %d: %v, then %v", grown, log.Bound, before, after)
	}
	if lines, most := heard.Lines-quiet.Lines, int64(took/time.Second+1)*ou08PerSec+ou08Burst; supervised && lines > most {
		t.Fail("chatter-unlimited", "PID 1 printed %d lines within %s of refused connections, at most %d: %q", lines, took.Round(time.Millisecond), most, heard.First)
	}
	if n := logsAfter - logsBefore; n > ou08Daemon {
		t.Fail("daemon-log-grew", "the runtime's own logs grew by %d bytes, bound %d", n, ou08Daemon)
	}
	return nil
}

// ou08Asked judges every create since mark by what it asks for.
func ou08Asked(t *conformance.T, mark int64) error {
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	t.NeedWitness("creates-on-the-tape", 1)
	for _, call := range calls {
		if call.Method != "POST" || !strings.HasSuffix(call.Path, "/containers/create") {
			continue
		}
		var body struct {
			HostConfig struct {
				LogConfig struct {
					Type   string
					Config map[string]string
				}
			}
		}
		if err := json.Unmarshal(call.Body, &body); err != nil {
			return err
		}
		t.Witness("creates-on-the-tape", 1)
		asked := body.HostConfig.LogConfig
		if bound, err := oracle.LogBound(asked.Type, asked.Config); err != nil || bound >= oracle.Unlimited {
			t.Fail("log-unbounded", "a create asks for the log driver %q with %v (%v)", asked.Type, asked.Config, err)
		}
	}
	return nil
}

// ou08LogBytes is the size of the runtime's own log files, 0 where it names none.
func ou08LogBytes(t *conformance.T) (n int64, err error) {
	paths, err := t.Target().Observer.Logs()
	if errors.Is(err, target.ErrUnavailable) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		st, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n += st.Size()
	}
	return n, nil
}
