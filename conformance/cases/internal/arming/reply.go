// SPDX-License-Identifier: Apache-2.0

package arming

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/emit"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// reply changes one thing at a time in an exact reply to a script of output.
func reply(context.Context, string) (f finding, err error) {
	content := make([]byte, 1009)
	if _, err := rand.Read(content); err != nil {
		return f, err
	}
	s := emit.Script{Content: content, Steps: []emit.Step{{FD: 1, Length: 1009, Block: 7}, {FD: 2, From: 500, Length: 400, Block: 400}}}
	const budget = 1200 // stderr is cut
	exact := func() target.Result {
		return target.Result{Stdout: s.Prefix(1, 1009), Stderr: s.Prefix(2, budget-1009), TruncatedStderr: true, DroppedBytes: s.Total() - budget}
	}
	f.witness = map[string]int64{"planted-found": 0}
	for _, plant := range []struct {
		reason string
		change func(*target.Result)
	}{
		{"bytes-differ", func(r *target.Result) { r.Stdout[500] ^= 1 }},
		{"bytes-differ", func(r *target.Result) { r.Stdout, r.Stderr = r.Stderr, r.Stdout }},
		{"output-missing", func(r *target.Result) { r.Stderr = r.Stderr[:len(r.Stderr)-1] }},
		{"output-above-budget", func(r *target.Result) { r.Stderr = s.Prefix(2, budget-1009+1) }},
		{"bytes-unaccounted", func(r *target.Result) { r.DroppedBytes-- }},
		{"truncated-in-silence", func(r *target.Result) { r.TruncatedStderr = false }},
		{"truncated-untrue", func(r *target.Result) { r.TruncatedStdout = true }},
	} {
		r := exact()
		r.Stdout, r.Stderr = bytes.Clone(r.Stdout), bytes.Clone(r.Stderr)
		plant.change(&r)
		found := false
		for _, d := range s.Differences(r, budget) {
			found = found || d.Reason == plant.reason
		}
		if !found {
			f.missed = append(f.missed, fmt.Sprintf("the comparison of a reply does not show %q", plant.reason))
			continue
		}
		f.witness["planted-found"]++
	}
	for _, d := range s.Differences(exact(), budget) {
		f.alarms = append(f.alarms, fmt.Sprintf("the comparison of an exact reply shows %q: %s", d.Reason, d.Text))
	}
	return f, nil
}

// hostSocket connects to an abstract name of the host that the suite listens at.
func hostSocket(ctx context.Context, _ string) (f finding, err error) {
	name := "hallmark-arming-" + rand.Text()
	l, err := oracle.ListenAbstract("", name)
	if err != nil {
		return f, err
	}
	defer l.Close()
	if n := l.Came(); n != 0 {
		f.alarms = append(f.alarms, fmt.Sprintf("%d connections to a name that nobody knows", n))
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return f, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name}); err != nil {
		return f, fmt.Errorf("connect to the suite's own listener: %w", err)
	}
	for end := time.Now().Add(5 * time.Second); l.Came() == 0 && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(time.Millisecond) // a listener counts when it is scheduled
	}
	if l.Came() != 1 {
		f.missed = append(f.missed, "the listener on the host does not count the suite's own connection")
		return f, nil
	}
	f.witness = map[string]int64{"planted-found": 1}
	return f, nil
}

// Descriptors starts the attack binary on the host, once with a descriptor that it should not have.
func Descriptors(ctx context.Context, t *conformance.T) error {
	look := func(planted bool) (int64, error) {
		argv := attack.Command(t.TenantOnHost(), "descriptors", "-all")
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		// The numbers up to here are closed, so that no planted one takes the place of another.
		cmd.ExtraFiles = make([]*os.File, 60)
		if planted {
			r, w, err := os.Pipe()
			if err != nil {
				return 0, err
			}
			defer r.Close()
			defer w.Close()
			cmd.ExtraFiles[3], cmd.ExtraFiles[58] = r, w
		}
		out, err := cmd.Output()
		if err != nil {
			return 0, fmt.Errorf("look at descriptors on the host: %w", err)
		}
		r, err := report.Parse(out)
		if err != nil {
			return 0, err
		}
		return r.Counts["inherited"], nil
	}
	clean, err := look(false)
	if err != nil {
		return err
	}
	found, err := look(true)
	if err != nil {
		return err
	}
	// What the suite itself was handed without the mark, it hands on both times.
	t.Observe("handed-on", clean)
	if found != clean+2 {
		t.Fail("planted-missed", "the look finds %d descriptors, %d without the 2 that were planted", found, clean)
	}
	t.Witness("planted-found", found-clean)
	return nil
}
