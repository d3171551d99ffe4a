// SPDX-License-Identifier: Apache-2.0

// Command limits measures what the limits of a sandbox buy, under each runtime of the lab, and prints
// one table: what an idle sandbox holds, how many processes of a tenant fit into a limit of tasks, which
// limit of memory is the least that a sandbox comes up with, and what typical commands take. It starts a
// worker in qualification mode on the lab's engine and reads the host's cgroup files. It judges
// nothing: docs/limits.md says what follows.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

func main() {
	bin := flag.String("bin", "bin", "folder of the built programs")
	only := flag.String("runtimes", "runsc,runc", "runtimes of the lab, comma-separated")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := limits(ctx, os.Stdout, *bin, strings.Split(*only, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(1)
	}
}

// What is tried. Every sandbox but those of a row's own limit has the middle of both.
var (
	taskLimits   = []int64{32, 64, 128, 256, 512, 1024}
	memoryLimits = []int64{16, 24, 32, 48, 64, 96, 128} // MiB
)

const (
	usualTasks  = 256
	usualMemory = 256 << 20
	guests      = 2000 // processes that the probe asks for at most
	forking     = 15   // seconds that it has to reach the limit; a busy machine may need longer, and then none is refused
)

// loads are commands that a tenant may run; the tenant program is in the workspace.
var loads = []struct {
	title string
	argv  []string
}{
	{"a static program of 5 MB that does nothing", []string{"./tenant", outside, "noop"}},
	{"a shell that starts 20 programs", []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do true | cat; done"}},
	{"16 MiB read from a file and hashed", []string{"sh", "-c", "dd if=/dev/zero of=f bs=1M count=16 2>/dev/null && sha256sum f"}},
	{"8 MB sorted in memory", []string{"sh", "-c", "seq 1 1000000 | sort -r | tail -1"}},
	{"64 MiB touched by one process", []string{"./tenant", outside, "memory-hog", "-bytes", "67108864", "-hold", "500ms"}},
}

// outside lets the tenant program run in sandboxes of any runtime.
const outside = "--allow-outside-sandbox"

type row struct {
	title string
	cells []string // one for each runtime
}

func limits(ctx context.Context, out io.Writer, bin string, runtimes []string) (err error) {
	l, err := lab.Up(ctx, lab.Options{Out: io.Discard, Bound: true})
	if err != nil {
		return err
	}
	if l.Fresh {
		// Its own context: an interrupt must not cut the clean-up short.
		defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	}
	release, err := l.Use()
	if err != nil {
		return err
	}
	defer release()
	var rows []row
	for i, name := range runtimes {
		cells, err := measure(ctx, l, name, bin)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for j, c := range cells {
			if i == 0 {
				rows = append(rows, row{title: c.title, cells: slices.Clone(c.cells)})
			} else {
				rows[j].cells = append(rows[j].cells, c.cells...)
			}
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "WHAT\t%s\n", strings.ToUpper(strings.Join(runtimes, "\t")))
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\n", r.title, strings.Join(r.cells, "\t"))
	}
	return w.Flush()
}

// site is one worker on one runtime.
type site struct {
	target *target.Target
	image  string
	tenant []byte
}

func measure(ctx context.Context, l *lab.Lab, name, bin string) (rows []row, err error) {
	s, err := open(ctx, l, name, bin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.target.Close()) }()
	add := func(title, format string, args ...any) {
		rows = append(rows, row{title, []string{fmt.Sprintf(format, args...)}})
	}

	var tasks, memory, peak int64
	var inside string
	err = s.within(ctx, usualMemory, usualTasks, func(sb target.Sandbox, g oracle.Cgroup) error {
		var err error
		if tasks, err = g.PIDs(); err != nil {
			return err
		}
		if memory, err = g.Memory(); err != nil {
			return err
		}
		if peak, err = g.MemoryPeak(); err != nil {
			return err
		}
		inside, err = supervisor(ctx, sb)
		return err
	})
	if err != nil {
		return nil, err
	}
	add("idle sandbox: host tasks", "%d", tasks)
	add("idle sandbox: memory charged, MiB", "%s", mib(memory))
	add("  its peak during the start, MiB", "%s", mib(peak))
	add("idle supervisor: resident memory inside, MiB", "%s", inside)

	for _, n := range taskLimits {
		fit, err := s.fit(ctx, n)
		if err != nil {
			return nil, err
		}
		add(fmt.Sprintf("limit of %d tasks: processes of a tenant", n), "%s", fit)
	}
	least := "none of those tried"
	for _, m := range memoryLimits {
		ok, err := s.comesUp(ctx, m<<20)
		if err != nil {
			return nil, err
		}
		if ok {
			least = strconv.FormatInt(m, 10)
			break
		}
	}
	add("least limit of memory that runs a command, MiB", "%s", least)
	for _, load := range loads {
		var peak int64
		err := s.within(ctx, usualMemory, usualTasks, func(sb target.Sandbox, g oracle.Cgroup) error {
			stop := g.Watch(ctx, 5*time.Millisecond)
			res, err := sb.Exec(ctx, target.Command{Argv: load.argv, Timeout: time.Minute})
			peak = stop().Memory
			if err == nil && res.ExitCode != 0 {
				err = fmt.Errorf("exit code %d: %.200s", res.ExitCode, res.Stderr)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", load.title, err)
		}
		add("peak of memory with "+load.title+", MiB", "%s", mib(peak))
	}
	return rows, nil
}

func mib(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }

// noCohort is told to the worker: nothing is admitted or signed here.
const noCohort = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// open starts a worker on the runtime.
func open(ctx context.Context, l *lab.Lab, name, bin string) (*site, error) {
	rt, ok := l.Runtimes[name]
	if !ok {
		return nil, fmt.Errorf("the lab has no such runtime: %s", l.Missing[name])
	}
	built, err := l.BuildImage(ctx, image.Busybox)
	if err != nil {
		return nil, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(bin, name) }
	config := api.Config{
		Engine: &api.Engine{
			Socket: l.Socket, PidFile: filepath.Join(l.RunDir, "dockerd.pid"), Runtime: rt.Name, CgroupParent: l.CgroupParent,
			SandboxBinary: api.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
		},
		Launch: &api.Launch{
			Worker: in("hallmark-worker"), Supervisor: in("hallmark-supervisor"), Quota: in("hallmark-quota"), Sockets: l.RunDir,
			Images: []api.Image{{ConfigDigest: built.ConfigDigest, ManifestDigest: built.ManifestDigest}}, CohortID: noCohort,
			Ceilings: api.Ceilings, ReserveBytes: api.ReserveBytes, ReserveInodes: api.ReserveInodes,
		},
	}
	if name == lab.RuntimeRunc { // there the process of a sandbox is its own PID 1
		digest, err := oracle.FileDigest(config.Launch.Supervisor)
		if err != nil {
			return nil, err
		}
		config.Launch.WorkerSandbox = &api.SandboxBinary{Path: config.Launch.Supervisor, Digest: digest}
		config.Launch.RuntimeDigest = rt.Digest
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	tenant, err := os.ReadFile(in("hallmark-tenant"))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(l.WorkDir, "limits-")
	if err != nil {
		return nil, err
	}
	work := filepath.Join(dir, "1", "target")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	t, err := api.Open(ctx, text, work)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	end := t.Close
	t.Close = func() error { return errors.Join(end(), os.RemoveAll(dir)) }
	return &site{target: t, image: built.ConfigDigest, tenant: tenant}, nil
}

// within runs f in a sandbox of these limits, and removes it.
func (s *site) within(ctx context.Context, memory, tasks int64, f func(target.Sandbox, oracle.Cgroup) error) (err error) {
	sb, err := s.target.Runtime.Create(ctx, target.Spec{WorkspaceID: "limits-" + strings.ToLower(rand.Text()), Image: s.image, MemoryBytes: memory, PIDs: tasks}.WithDefaults())
	if err != nil {
		return err
	}
	defer func() {
		clean := context.WithoutCancel(ctx)
		err = errors.Join(err, sb.Dispose(clean), s.target.Runtime.Purge(clean, sb.WorkspaceID()))
	}()
	c, err := s.target.Observer.Container(ctx, sb.ID())
	if err != nil {
		return err
	}
	if err := sb.Files().Write(ctx, "tenant", s.tenant); err != nil {
		return err
	}
	return f(sb, oracle.Cgroup{Dirs: c.Cgroups})
}

// fit is how many processes of a tenant live at once under a limit of tasks, and what became of the sandbox.
func (s *site) fit(ctx context.Context, tasks int64) (string, error) {
	out := ""
	err := s.within(ctx, 1<<30, tasks, func(sb target.Sandbox, _ oracle.Cgroup) error {
		res, err := sb.Exec(ctx, target.Command{Argv: []string{"./tenant", outside, "fork-bomb", "-seconds", strconv.Itoa(forking), "-linger", "0", "-max", strconv.Itoa(guests)}, Timeout: time.Minute})
		if code := target.CodeOf(err); code != "" {
			out = "none: " + strings.TrimPrefix(code, "REMOTE_WORKER_")
			return nil
		}
		if err != nil {
			return err
		}
		r, err := report.Parse(res.Stdout)
		switch {
		case err != nil:
			out = fmt.Sprintf("none: exit code %d", res.ExitCode)
		case r.Counts["refused"] == 0:
			out = fmt.Sprintf("%d, none refused", r.Counts["peak"])
		default:
			out = strconv.FormatInt(r.Counts["peak"], 10)
		}
		return nil
	})
	if code := target.CodeOf(err); code != "" {
		return "no sandbox: " + strings.TrimPrefix(code, "REMOTE_WORKER_"), nil
	}
	return out, err
}

// comesUp reports whether a sandbox of so much memory is made and runs a command.
func (s *site) comesUp(ctx context.Context, memory int64) (bool, error) {
	ok := false
	err := s.within(ctx, memory, usualTasks, func(sb target.Sandbox, _ oracle.Cgroup) error {
		res, err := sb.Exec(ctx, target.Command{Argv: []string{"./tenant", outside, "noop"}})
		ok = err == nil && res.ExitCode == 0
		return err
	})
	if target.CodeOf(err) != "" {
		return false, nil
	}
	return ok, err
}

// supervisor is the resident memory of every root process in the sandbox, by name, as its own kernel says.
func supervisor(ctx context.Context, sb target.Sandbox) (string, error) {
	res, err := sb.Exec(ctx, target.Command{Argv: []string{"sh", "-c", `for d in /proc/[0-9]*; do [ -O $d ] || { grep -E '^(Pid|VmRSS):' $d/status; tr '\0' ' ' <$d/cmdline; echo; }; done`}})
	if err != nil {
		return "", err
	}
	var all int64
	n := 0
	for in := bufio.NewScanner(strings.NewReader(string(res.Stdout))); in.Scan(); {
		if value, ok := strings.CutPrefix(in.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return "", err
			}
			all, n = all+kib<<10, n+1
		}
	}
	if n == 0 {
		return "", fmt.Errorf("no process of root's is seen: %.200s", res.Stderr)
	}
	return fmt.Sprintf("%s in %d processes", mib(all), n), nil
}
