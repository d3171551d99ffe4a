// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	docker "github.com/docker/docker/client"

	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// bench is a launched worker with the attack program in one sandbox.
type bench struct {
	*testing.B
	launched
	target *target.Target
	sb     target.Sandbox
}

const program = "/bin/true" // of the busybox image: one static program

func newBench(b *testing.B) *bench {
	b.Helper()
	s := &bench{B: b, launched: launch(b, image.Busybox)}
	var err error
	if s.target, err = api.Open(b.Context(), s.config, s.work); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.target.Close(); err != nil {
			b.Error(err)
		}
		os.RemoveAll(s.work)
		os.Remove(filepath.Join(filepath.Dir(s.work), "sync"))
	})
	s.sb = s.create()
	body, err := os.ReadFile(filepath.Join(s.bin, "hallmark-tenant"))
	if err != nil {
		b.Fatal(err)
	}
	if err := s.sb.Files().Write(b.Context(), "tenant", body); err != nil {
		b.Fatal(err)
	}
	return s
}

func (s *bench) create() target.Sandbox {
	s.Helper()
	sb, err := s.target.Runtime.Create(s.Context(), target.Spec{WorkspaceID: fmt.Sprintf("bench-%d", time.Now().UnixNano()), Image: s.image.ConfigDigest})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := sb.Dispose(context.WithoutCancel(s.Context())); err != nil {
			s.Error(err)
		}
		if err := s.target.Runtime.Purge(context.WithoutCancel(s.Context()), sb.WorkspaceID()); err != nil {
			s.Error(err)
		}
	})
	return sb
}

func (s *bench) container(sb target.Sandbox) target.Container {
	s.Helper()
	c, err := s.target.Observer.Container(s.Context(), sb.ID())
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// quantiles reports p50, p99 and the highest of what was measured under a name.
func (s *bench) quantiles(name string, all []time.Duration) {
	slices.Sort(all)
	report := func(what string, d time.Duration) { s.ReportMetric(float64(d.Microseconds()), name+"-"+what+"-µs") }
	report("p50", all[len(all)/2])
	report("p99", all[len(all)*99/100])
	report("max", all[len(all)-1])
}

// BenchmarkExec times `true` in three ways, in turns: through the whole API; by a program in the same
// sandbox that forks, executes and waits, which is the floor; and by the engine's exec in another
// sandbox of the same worker, which is a container of the same profile. One iteration is one turn.
//
// Between execs there is a pause, as between the commands of somebody who looks at what they say: what the
// supervisor prepares meanwhile is not waited for. "unpaused" has no pause, so it pays for that too.
//
// "inside" is what the supervisor says of the first, in whole milliseconds: from its handing the command
// over to the leader's end. "sync" is one fsync(2) of 4 KiB beside the worker's state: an exec needs several.
func BenchmarkExec(b *testing.B) {
	s := newBench(b)
	cli, err := s.lab.Client()
	if err != nil {
		b.Fatal(err)
	}
	defer cli.Close()
	other := s.container(s.create()).ID
	const perTurn, pause = 5, 150 * time.Millisecond
	var through, unpaused, inside, floor, engine, sync []time.Duration
	for range 5 { // the first of a sandbox is in no figure
		s.exec(program)
	}
	for b.Loop() {
		for range perTurn {
			time.Sleep(pause)
			began := time.Now()
			res := s.exec(program)
			through, inside = append(through, time.Since(began)), append(inside, res.Duration)
			sync = append(sync, s.sync())
		}
		for range perTurn {
			began := time.Now()
			s.exec(program)
			unpaused = append(unpaused, time.Since(began))
		}
		floor = append(floor, s.floor(perTurn)...)
		began := time.Now()
		engineExec(b, cli, other)
		engine = append(engine, time.Since(began))
	}
	s.quantiles("api", through)
	s.quantiles("unpaused", unpaused)
	s.quantiles("inside", inside)
	s.quantiles("floor", floor)
	s.quantiles("engine", engine)
	s.quantiles("sync", sync)
}

// sync writes a block to a file of its own, durably.
func (s *bench) sync() time.Duration {
	s.Helper()
	f, err := os.OpenFile(filepath.Join(filepath.Dir(s.work), "sync"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 4096)); err != nil {
		s.Fatal(err)
	}
	began := time.Now()
	if err := f.Sync(); err != nil {
		s.Fatal(err)
	}
	return time.Since(began)
}

func (s *bench) exec(argv ...string) target.Result {
	s.Helper()
	res, err := s.sb.Exec(s.Context(), target.Command{Argv: argv})
	if err != nil || res.ExitCode != 0 || !res.CleanupProven {
		s.Fatalf("exec %q: %+v, %v: %s", argv, res, err, res.Stderr)
	}
	return res
}

// floor spawns n times within the sandbox.
func (s *bench) floor(n int) (took []time.Duration) {
	s.Helper()
	r, err := report.Parse(s.exec("./tenant", "spawn-floor", "-n", strconv.Itoa(n), program).Stdout)
	if err != nil {
		s.Fatal(err)
	}
	for _, f := range strings.Fields(r.Facts["µs"]) {
		us, err := strconv.Atoi(f)
		if err != nil {
			s.Fatal(err)
		}
		took = append(took, time.Duration(us)*time.Microsecond)
	}
	if len(took) != n {
		s.Fatalf("%d spawns, not %d", len(took), n)
	}
	return took
}

// engineExec is one exec as a worker without a bridge would make it: create, attach to its end, inspect.
func engineExec(b *testing.B, cli *docker.Client, id string) {
	b.Helper()
	ex, err := cli.ContainerExecCreate(b.Context(), id, container.ExecOptions{User: "65532:65532", WorkingDir: "/workspace", Cmd: []string{program}, AttachStdout: true, AttachStderr: true})
	if err != nil {
		b.Fatal(err)
	}
	at, err := cli.ContainerExecAttach(b.Context(), ex.ID, container.ExecAttachOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer at.Close()
	if out, err := io.ReadAll(at.Reader); err != nil || len(out) != 0 {
		b.Fatalf("%q, %v", out, err)
	}
	if in, err := cli.ContainerExecInspect(b.Context(), ex.ID); err != nil || in.ExitCode != 0 {
		b.Fatalf("%+v, %v", in, err)
	}
}

// BenchmarkKillToQuiet times the end of a tree that ignores SIGTERM and has left its session in parts, until
// the last beat that the host sees: from the caller's leaving, and from the time-out, counted from
// the request, so that the start of the tree is in it.
func BenchmarkKillToQuiet(b *testing.B) {
	s := newBench(b)
	const limit = 4 * time.Second
	var cancel, timeout []time.Duration
	turn := 0
	for b.Loop() {
		for _, way := range []string{"cancel", "timeout"} {
			turn++
			name := fmt.Sprintf("%s%d-", way, turn)
			var beats []string
			for i := range 3 {
				beats = append(beats, filepath.Join(s.container(s.sb).Workspace, name+strconv.Itoa(i)))
			}
			ctx, leave := context.WithCancel(b.Context())
			cmd := target.Command{Argv: []string{"./tenant", "stubborn-tree", "-file", name}, Timeout: time.Minute}
			if way == "timeout" {
				cmd.Timeout = limit
			}
			began := time.Now()
			ended := make(chan string, 1)
			go func() {
				res, err := s.sb.Exec(ctx, cmd)
				ended <- fmt.Sprintf("%+v, %v", res, err)
			}()
			for _, f := range beats {
				if err := oracle.WaitBeating(b.Context(), f, 3, 20*time.Second); err != nil {
					leave()
					b.Fatalf("%s: %v: %s", way, err, <-ended)
				}
			}
			if way == "cancel" {
				leave()
				cancel = append(cancel, s.quiet(beats, time.Now()))
			} else {
				if time.Since(began) > limit {
					b.Fatal("the tree needed longer than its time to start")
				}
				time.Sleep(time.Until(began.Add(limit)))
				timeout = append(timeout, s.quiet(beats, began.Add(limit)))
			}
			<-ended
			leave()
		}
	}
	s.quantiles("cancel", cancel)
	s.quantiles("timeout", timeout)
}

// quiet returns the time from since to the last beat of any of the files, when none has come for a
// hundred times a beat's period.
func (s *bench) quiet(files []string, since time.Time) time.Duration {
	s.Helper()
	const rest, within = 500 * time.Millisecond, 15 * time.Second
	size := func() (sum int64) {
		for _, f := range files {
			n, err := oracle.FileSize(f)
			if err != nil {
				s.Fatal(err)
			}
			sum += n
		}
		return sum
	}
	last, at := size(), since
	for time.Since(at) < rest || time.Since(since) < rest {
		if now := size(); now != last {
			last, at = now, time.Now()
		}
		if time.Since(since) > within {
			s.Fatal("it beats on")
		}
		time.Sleep(time.Millisecond)
	}
	return at.Sub(since)
}

// BenchmarkIdleSandbox reads what a sandbox costs in which nothing runs: of the supervisor's processes by a root
// foothold inside, of the whole by its cgroup.
func BenchmarkIdleSandbox(b *testing.B) {
	s := newBench(b)
	var cgroup oracle.Cgroup
	resident := map[string]float64{}
	var memory, peak, tasks int64
	for b.Loop() {
		sb := s.create()
		time.Sleep(2 * time.Second) // everything that it prepares is prepared
		cgroup = oracle.Cgroup{Dirs: s.container(sb).Cgroups}
		for _, read := range []struct {
			f    func() (int64, error)
			into *int64
		}{{cgroup.Memory, &memory}, {cgroup.MemoryPeak, &peak}, {cgroup.PIDs, &tasks}} {
			n, err := read.f()
			if err != nil {
				b.Fatal(err)
			}
			*read.into = n
		}
		resident = s.resident(sb)
	}
	const MiB = 1 << 20
	for _, name := range []string{"pid1", "keeper", "bridge"} {
		if resident[name] == 0 {
			b.Errorf("no %s was found: %v", name, resident)
		}
	}
	for name, v := range resident {
		b.ReportMetric(v/MiB, name+"-MiB")
	}
	st, err := os.Stat(filepath.Join(s.bin, "hallmark-supervisor"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(st.Size())/MiB, "binary-MiB")
	b.ReportMetric(float64(memory)/MiB, "cgroup-MiB")
	b.ReportMetric(float64(peak)/MiB, "cgroup-peak-MiB")
	b.ReportMetric(float64(tasks), "tasks")
}

// roles are the words on the command lines of the supervisor's processes.
var roles = map[string]string{"supervisor": "pid1", "invoke": "keeper", "bridge": "bridge", "launch": "launch"}

// resident is VmRSS of the supervisor's processes in bytes, the highest of each role.
func (s *bench) resident(sb target.Sandbox) map[string]float64 {
	s.Helper()
	script := `for p in /proc/[0-9]*; do echo "$(tr '\0' ' ' <$p/cmdline) $(grep VmRSS $p/status)"; done`
	res, err := s.target.Controller.Foothold(s.Context(), sb.ID(), []string{"/bin/sh", "-c", script}, nil)
	if err != nil || res.ExitCode != 0 {
		s.Fatalf("%+v, %v", res, err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(bytes.TrimSpace(res.Stdout))) {
		s.Log(strings.TrimSpace(line))
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasSuffix(f[0], "/supervisor") {
			continue
		}
		kib, err := strconv.ParseFloat(f[len(f)-2], 64)
		if err != nil {
			s.Fatalf("%q: %v", line, err)
		}
		if role := roles[f[1]]; role != "" {
			out[role] = max(out[role], kib*1024)
		}
	}
	return out
}
