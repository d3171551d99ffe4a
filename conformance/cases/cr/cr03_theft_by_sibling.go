// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// codeBusy is the answer to what may not run beside a secret-bearing invocation.
const codeBusy = "REMOTE_WORKER_EXEC_CONCURRENCY_EXHAUSTED"

// cr03Siblings is how many commands are sent beside the secret-bearing one. Each is refused for itself,
// so one would do for the rule; twelve make sure that they are spread over its whole life.
const cr03Siblings = 12

// CR03 tries to be another process of the same user beside a secret-bearing invocation.
//
// A kernel lets a process read the memory and the descriptors of another one of its user, and every command of a
// sandbox is the same user. So what protects a secret is that there is no other: that is judged. That
// the theft would succeed is shown by a process that the suite puts there itself.
var CR03 = conformance.Case{
	ID: "CR-03", Revision: 1, Title: "/proc theft by sibling",
	Requirement: "While a secret-bearing invocation runs, nobody else's command is in its container: whatever else is asked to run or to write is refused with a stable code, the container was started for it, and no other command is in there.",
	Threat:      "A command of another authority reads the secret from the process that was given it: descriptors, environment, memory.",
	Attack:      "A secret-bearing command holds the secret in a descriptor, its environment and its memory. Meanwhile twelve other commands are sent that would read all of that by /proc, pidfd_getfd(2), process_vm_readv(2) and ptrace(2), another secret-bearing one, and a write by the file API; before, the other way round, a secret-bearing command is sent beside an ordinary one. At last root puts a process of the tenant's user into the container, past the runtime.",
	Witness:     "Commands that were sent while the command with the secret was seen in the container (at least 12); ways of theft that the process which root put there tried on it (at least 6).",
	Oracle:      "Status and code of each answer; a census of the container's processes by root, by where they descend from; the engine calls recorded meanwhile, for the containers that were started; the provider's own log. What anybody got is compared with the secret on the host, by digest.",
	Precedent:   "inflexa#88, llxprt-code#3573, kube-agents#1270",
	Tier:        conformance.Full, Control: true, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartSecrets, conformance.PartTape, conformance.PartEngine, conformance.PartWorkspacePath, conformance.PartFoothold, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m90", Reason: "secret-stolen"}},
	Run:      runCR03,
}

// theft is one run of CR-03.
type theft struct {
	t      *conformance.T
	b      *delivery.Box
	before target.Container
	digest string // of the secret
	mark   int64  // of the tape, before the secret-bearing command
}

func runCR03(ctx context.Context, t *conformance.T) error {
	// Arrange.
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	before, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(b.Secret))
	th := &theft{t: t, b: b, before: before, digest: hex.EncodeToString(sum[:])}
	t.NeedWitness("siblings-sent", cr03Siblings)
	t.NeedWitness("ways-tried", 6)
	if err := th.besideOrdinary(ctx); err != nil {
		return err
	}

	if _, th.mark, err = t.Target().Observer.Tape(0); err != nil {
		return err
	}

	// Attack.
	type end struct {
		r   report.Report
		err error
	}
	ended := make(chan end, 1)
	go func() {
		r, err := b.Run(ctx, "cr03-secret", "secret-display", "-wait", "/workspace/cr03-end")
		ended <- end{r, err}
	}()
	attacked := th.besideSecret(ctx)
	if err := os.WriteFile(filepath.Join(before.Workspace, "cr03-end"), nil, 0o644); err != nil {
		return err
	}
	last := <-ended
	if attacked != nil {
		return attacked
	}
	if last.err != nil {
		return last.err
	}
	if sum := sha256.Sum256(delivery.Frame(delivery.Name, b.Secret)); last.r.Facts["sha256"] != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("the command with the secret got %d bytes that are not the frame", last.r.Counts["bytes"])
	}
	return nil
}

// besideOrdinary sends a secret-bearing command while an ordinary one runs.
func (th *theft) besideOrdinary(ctx context.Context) error {
	began, release := filepath.Join(th.before.Workspace, "cr03-began"), filepath.Join(th.before.Workspace, "cr03-go")
	ended := make(chan error, 1)
	go func() {
		_, err := attack.Must(ctx, th.b, target.Command{Argv: attack.Command(th.b.Program, "contract", "-touch", "cr03-began", "-wait", "cr03-go")})
		ended <- err
	}()
	if runs, err := attack.Eventually(ctx, 20*time.Second, exists(began)); err != nil || !runs {
		return fmt.Errorf("the ordinary command does not begin: %w", err)
	}
	res, err := th.b.Wire(ctx, th.b.Request("cr03-reverse", "", attack.Command(th.b.Program, "secret-frame")...))
	if err != nil {
		return err
	}
	th.refused("a secret-bearing command beside an ordinary one", res)
	if leases, _, err := th.b.Asked("cr03-reverse"); err != nil || leases > 0 {
		th.t.Fail("provider-asked", "the provider was asked %d times for a command that may not run, %v", leases, err)
	}
	if err := os.WriteFile(release, nil, 0o644); err != nil {
		return err
	}
	return <-ended
}

func exists(path string) func() (bool, error) {
	return func() (bool, error) {
		_, err := os.Lstat(path)
		return err == nil, nil
	}
}

// refused judges one answer.
func (th *theft) refused(what string, res target.RawResponse) {
	switch {
	case res.Status < 300:
		th.t.Fail("sibling-ran", "%s was answered with status %d", what, res.Status)
	case res.Code != codeBusy:
		th.t.Fail("code-differs", "%s was answered with %q", what, res.Code)
	}
}

// besideSecret does everything that is done while the secret is in the container.
func (th *theft) besideSecret(ctx context.Context) error {
	var c target.Container
	var census report.Report
	there, err := attack.Eventually(ctx, 30*time.Second, func() (bool, error) {
		// Containers come and go meanwhile: only the new one counts, and only with the command in it.
		var err error
		if c, err = attack.Container(ctx, th.t, th.b); err != nil || c.ID == th.before.ID || c.Pid == 0 {
			return false, nil
		}
		census, err = attack.Foothold(ctx, th.t, th.b, "census")
		return err == nil && census.Counts["tenants"] >= 2, nil // the command, and the child that holds the secret
	})
	if err != nil || !there {
		return fmt.Errorf("the command with the secret is not seen in a container of its own: %w", err)
	}
	attack.Witness(th.t, "census", census)
	for i := range cr03Siblings {
		id := "cr03-sibling-" + strconv.Itoa(i)
		res, err := th.b.Wire(ctx, wire.Exec(th.b, id, attack.Command(th.b.Program, "steal")...))
		if err != nil {
			return err
		}
		if res.Status == 200 {
			r, err := delivery.Report(res)
			if err == nil {
				th.stolen("a command that was sent meanwhile", r)
			}
		}
		th.refused("a command beside a secret-bearing one", res)
		if res.Status < 300 { // judged; it took the time that the others would need
			return nil
		}
	}
	res, err := th.b.Wire(ctx, th.b.Request("cr03-second", "", attack.Command(th.b.Program, "secret-frame")...))
	if err != nil {
		return err
	}
	th.refused("another secret-bearing command", res)
	if res, err = th.b.Wire(ctx, wire.Write(th.b, "cr03-planted", []byte("x"))); err != nil {
		return err
	}
	th.refused("a write by the file API", res)

	// Verdict: who is there.
	again, err := attack.Foothold(ctx, th.t, th.b, "census")
	if err != nil {
		return err
	}
	if again.Counts["tenants"] >= 2 {
		th.t.Witness("siblings-sent", cr03Siblings)
	}
	for _, r := range []report.Report{census, again} {
		if r.Counts["leaders"] != 1 || r.Counts["strangers"] != 0 {
			th.t.Fail("not-alone", "beside the command with the secret there are %d other commands and %d processes of unknown origin", r.Counts["leaders"]-1, r.Counts["strangers"])
		}
	}
	calls, _, err := th.t.Target().Observer.Tape(th.mark)
	if err != nil {
		return err
	}
	if started := delivery.Started(calls); len(started) != 1 || started[0] != c.ID {
		th.t.Fail("not-alone", "the command with the secret does not run in the one container that was started for it; %d were", len(started))
	}

	// What being alone is worth: a process of the same user, past the runtime.
	planted, err := attack.Foothold(ctx, th.t, th.b, "steal", "-become")
	if err != nil {
		return err
	}
	attack.Witness(th.t, "planted", planted)
	if planted.Counts["victims"] > 0 {
		th.t.Witness("ways-tried", planted.Counts["ways"])
	}
	works := 0
	for _, digest := range planted.Facts {
		if digest == th.digest {
			works++
		}
	}
	th.t.Observe("ways-that-work-for-a-planted-process", works)
	return nil
}

// stolen judges what a process got that should not have been there.
func (th *theft) stolen(who string, r report.Report) {
	for way, digest := range r.Facts {
		if digest == th.digest {
			th.t.Fail("secret-stolen", "%s got the secret by %s", who, way)
		}
	}
}
