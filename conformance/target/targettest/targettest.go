// SPDX-License-Identifier: Apache-2.0

// Package targettest is the contract test of targets: every promise that package target's
// interfaces make and that a case relies on, one check each.
//
// A driver's own tests call [Run]; a program without Go is examined by `hallmark target check`,
// which calls [Examine]. The package creates sandboxes and workspaces through the target and
// removes them through it; it asks the host only where the target's observer points. It attacks
// nothing and judges no security: a target that keeps the contract may still fail every case.
//
// Read next: docs/exec-driver.md for the same promises in words.
package targettest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// Options of one examination.
type Options struct {
	Tenant string // the static attack program, run in the sandboxes; [Run] builds it when ""
	Image  string // config digest that the target can start; "" for a target without images
	Dir    string // the folder that the driver was given: empty or gone after Close; "" is not looked at
}

// Check is one promise.
type Check struct {
	Name    string // stable, lower case
	Promise string // one sentence
	run     func(ctx context.Context, s *subject) error
}

// Finding is what one check came to.
type Finding struct {
	Check
	Err        error  // what is broken; nil for a kept promise
	NotOffered string // why the promise is not made by this target; then Err is nil
	Duration   time.Duration
}

// checkBound bounds one check; the longest waits for time-outs of a few seconds.
const checkBound = 2 * time.Minute

// Checks lists the promises in the order in which they are examined. The last closes the target.
func Checks() []Check {
	return slices.Concat(identity(), commands(), workspace(), outside(), authority(), ending())
}

// Examine checks every promise of tg, tells each finding as it comes, and closes tg.
func Examine(ctx context.Context, tg *target.Target, o Options, tell func(Finding)) []Finding {
	s := &subject{tg: tg, o: o}
	var out []Finding
	for _, c := range Checks() {
		f := s.examine(ctx, c)
		if tell != nil {
			tell(f)
		}
		out = append(out, f)
	}
	return out
}

// Run examines the target that open returns, one subtest a promise. A promise that the target
// does not make is logged.
func Run(t *testing.T, open func(t *testing.T) *target.Target, o Options) {
	t.Helper()
	if o.Tenant == "" {
		o.Tenant = build(t)
	}
	s := &subject{tg: open(t), o: o}
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			f := s.examine(t.Context(), c)
			if f.NotOffered != "" {
				t.Logf("not offered: %s", f.NotOffered)
			}
			if f.Err != nil {
				t.Errorf("%s\n%v", c.Promise, f.Err)
			}
		})
	}
}

func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tenant")
	cmd := exec.Command("go", "build", "-o", path, "github.com/hallmark-sandbox/hallmark/fixtures/tenant")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the attack program: %v\n%s", err, out)
	}
	return path
}

// notOffered ends a check whose promise the target does not make.
type notOffered string

func (n notOffered) Error() string { return string(n) }

// subject is a target under examination, with what the checks have made of it.
type subject struct {
	tg     *target.Target
	o      Options
	claims []string

	shared     target.Sandbox // of the checks that leave a sandbox as they found it
	sandboxes  []target.Sandbox
	workspaces []string
	places     []string // host paths that must be gone at the end
}

func (s *subject) examine(ctx context.Context, c Check) Finding {
	ctx, cancel := context.WithTimeout(ctx, checkBound)
	defer cancel()
	start := time.Now()
	err := c.run(ctx, s)
	f := Finding{Check: c, Duration: time.Since(start)}
	var no notOffered
	if errors.As(err, &no) {
		f.NotOffered = string(no)
	} else {
		f.Err = err
	}
	return f
}

func (s *subject) has(part string) bool { return slices.Contains(s.tg.Parts, part) }

// create makes a sandbox with the attack program in it.
func (s *subject) create(ctx context.Context, spec target.Spec) (target.Sandbox, error) {
	if spec.WorkspaceID == "" {
		spec.WorkspaceID = "ws-contract-" + fmt.Sprint(len(s.workspaces)) + "-" + fmt.Sprint(time.Now().UnixNano())
	}
	spec.Image = s.image()
	s.workspaces = append(s.workspaces, spec.WorkspaceID)
	sb, err := s.tg.Runtime.Create(ctx, spec.WithDefaults())
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	s.sandboxes = append(s.sandboxes, sb)
	return sb, s.install(ctx, sb)
}

func (s *subject) image() string {
	if s.o.Image == "" {
		return evidence.Digest([]byte("no image"))
	}
	return s.o.Image
}

const program = "hallmark-tenant"

func (s *subject) install(ctx context.Context, sb target.Sandbox) error {
	body, err := os.ReadFile(s.o.Tenant)
	if err != nil {
		return err
	}
	if err := sb.Files().Write(ctx, program, body); err != nil {
		return fmt.Errorf("write the test program, %d bytes: %w", len(body), err)
	}
	return nil
}

// box is the shared sandbox.
func (s *subject) box(ctx context.Context) (target.Sandbox, error) {
	if s.shared != nil {
		return s.shared, nil
	}
	sb, err := s.create(ctx, target.Spec{})
	if err == nil {
		s.shared = sb
	}
	return sb, err
}

// argv runs the attack program's contract mode.
func argv(args ...string) []string {
	return append([]string{"./" + program, "--allow-outside-sandbox", "contract"}, args...)
}

// ask runs a command in the shared sandbox and reads its report.
func (s *subject) ask(ctx context.Context, cmd target.Command) (report.Report, error) {
	sb, err := s.box(ctx)
	if err != nil {
		return report.Report{}, err
	}
	res, err := sb.Exec(ctx, cmd)
	if err != nil {
		return report.Report{}, fmt.Errorf("exec: %w", err)
	}
	r, err := report.Parse(res.Stdout)
	if err != nil || res.ExitCode != 0 {
		return r, fmt.Errorf("the test program ended with exit code %d %s, stdout %.200q, stderr %.200q", res.ExitCode, res.Signal, res.Stdout, res.Stderr)
	}
	return r, nil
}

// faults collects what is wrong.
type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }
func (f *faults) join() error                    { return errors.Join(*f...) }

// typed refuses an error without a code, with an unknown kind, or with a kind that is none of want.
func (f *faults) typed(what string, err error, want ...target.Kind) {
	switch kind := target.KindOf(err); {
	case err == nil:
		f.add("%s succeeds", what)
	case target.CodeOf(err) == "":
		f.add("%s: the error has no code: %v", what, err)
	case !slices.Contains(kinds, kind):
		f.add("%s: the kind %q is unknown", what, kind)
	case kind != "" && len(want) > 0 && !slices.Contains(want, kind):
		f.add("%s: the kind is %q, expected %q (or none)", what, kind, want)
	}
}

var kinds = []target.Kind{"", target.KindOOM, target.KindDied, target.KindGone, target.KindPathUnsafe, target.KindNotFound,
	target.KindNoSpace, target.KindBusy, target.KindUnqualified, target.KindUnsupported}

func describe(res target.Result) string {
	return strings.TrimSpace(fmt.Sprintf("exit code %d %s, timed out %v, %d and %d bytes, %d dropped", res.ExitCode, res.Signal, res.TimedOut, len(res.Stdout), len(res.Stderr), res.DroppedBytes))
}
