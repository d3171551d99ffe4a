// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// CR02 delivers a secret and looks for it everywhere else while its command runs.
var CR02 = conformance.Case{
	ID: "CR-02", Revision: 1, Title: "Secret surface sweep",
	Requirement: "A secret is on descriptor 3 of the authorised process and nowhere else: in no argument, environment, container setting, engine call or log, inside or outside.",
	Threat:      "A secret is read where every process, operator or backup can look.",
	Attack:      "A command reads its secret and stays for three seconds; meanwhile it searches the arguments and environments of every process that it can see, and the host does the same with its own process table and with what the engine says of the container.",
	Witness:     "Sweeps of the host that began and ended while the command ran (at least 3); processes that the command searched, itself included (at least 1).",
	Oracle:      "Arguments and environments in the host's process table, the engine's inspect answer, the recorded engine calls and the runtime's log. What only the sandbox can see, the command reports.",
	Precedent:   "hermes-agent#96268, sandy#13, pi-dispatch#225",
	Tier:        conformance.Full, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartSecrets, conformance.PartTape, conformance.PartEngine},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine, conformance.OracleProcess},
	Kills:    []conformance.Kill{{Mutant: "m15", Reason: "secret-in-environment"}},
	Run:      runCR02,
}

func runCR02(ctx context.Context, t *conformance.T) error {
	// Arrange.
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	before, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}

	// Attack, and look meanwhile: while the container that was started for it is there.
	type end struct {
		r   report.Report
		err error
	}
	ended := make(chan end, 1)
	go func() {
		r, err := b.Run(ctx, "cr02-secret", "secret-surface", "-hold", "3s")
		ended <- end{r, err}
	}()
	t.NeedWitness("sweeps", 3)
	t.NeedWitness("searched-inside", 1)
	var last end
	for over := false; !over; {
		// Containers come and go meanwhile, also while one is looked at: only what was seen whole counts.
		c, err := attack.Container(ctx, t, b)
		during := err == nil && c.ID != before.ID && c.Pid > 0
		if during {
			places, err := hostSweep(ctx, engine, c.ID, []byte(b.Secret))
			if err != nil {
				return err
			}
			for _, p := range places {
				t.Fail("secret-outside", "the secret is in %s", p)
			}
		}
		select {
		case last = <-ended:
			over = true
		default:
			if during {
				t.Witness("sweeps", 1)
			}
		}
	}
	if last.err != nil {
		return last.err
	}

	// Verdict on what only the sandbox sees; log and tape are searched after every case.
	attack.Witness(t, "secret-surface", last.r)
	t.Witness("searched-inside", last.r.Counts["searched"])
	if n := last.r.Counts["in-environment"]; n > 0 {
		t.Fail("secret-in-environment", "the secret is in the environment of %d processes of the sandbox", n)
	}
	if n := last.r.Counts["in-arguments"]; n > 0 {
		t.Fail("secret-in-arguments", "the secret is in the arguments of %d processes of the sandbox", n)
	}
	return nil
}

// hostSweep returns where a secret is on the host: arguments and environments, and the engine's
// settings of the container. A process that ends meanwhile is passed over, and so is this one.
func hostSweep(ctx context.Context, engine *oracle.Engine, id string, secret []byte) (places []string, err error) {
	f, found, err := engine.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, kv := range f.Env {
		if found && bytes.Contains([]byte(kv), secret) {
			places = append(places, "the environment of the container")
		}
	}
	for _, v := range f.Labels {
		if bytes.Contains([]byte(v), secret) {
			places = append(places, "a label of the container")
		}
	}
	for _, file := range []string{"cmdline", "environ"} {
		paths, err := filepath.Glob("/proc/[0-9]*/" + file)
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if text, err := os.ReadFile(p); err == nil && bytes.Contains(text, secret) {
				places = append(places, "the "+file+" of a process of the host")
			}
		}
	}
	return places, nil
}
