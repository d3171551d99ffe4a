// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/conformance/internal/proctable"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Bounds of what is kept of a case that did not pass. Each file is bounded like any artifact.
const (
	captureTime      = 20 * time.Second // for all of it
	captureCommand   = 512              // bytes of one process's command line
	captureProcesses = 1000             // processes of one sandbox
	captureSandboxes = 16               // of one case
)

const captureTape = "capture-6-tape.jsonl"

// cgroupFiles are those whose content says why a sandbox came to its end, of v1 and v2.
var cgroupFiles = []string{
	"cgroup.events", "memory.current", "memory.events", "memory.failcnt", "memory.limit_in_bytes", "memory.max", "memory.max_usage_in_bytes",
	"memory.memsw.failcnt", "memory.memsw.limit_in_bytes", "memory.memsw.max_usage_in_bytes", "memory.oom_control", "memory.peak",
	"memory.swap.current", "memory.swap.max", "memory.usage_in_bytes", "pids.current", "pids.events", "pids.max", "pids.peak",
}

// capture keeps what can be seen of the case's sandboxes before anything is removed. Names sort in the
// order of reading. Nothing here is judged; what cannot be read is said in the file.
func (t *T) capture(tg *target.Target, since share) {
	if tg.Observer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), captureTime)
	defer cancel()
	t.mu.Lock()
	sandboxes := slices.Clone(t.sandboxes)
	t.mu.Unlock()
	var inspect, cgroups, processes, mounts bytes.Buffer
	socket, _ := tg.Observer.EngineSocket()
	for _, sb := range sandboxes[:min(len(sandboxes), captureSandboxes)] {
		c, err := tg.Observer.Container(ctx, sb.ID())
		switch {
		case errors.Is(err, target.ErrNoContainer), errors.Is(err, target.ErrUnavailable):
			continue
		case err != nil:
			fmt.Fprintf(&inspect, "{\"sandbox\":%q,\"error\":%q}\n", sb.ID(), err)
			continue
		}
		var raw json.RawMessage
		if socket != "" && c.ID != "" {
			if err := engineGet(ctx, socket, "/containers/"+c.ID+"/json", &raw); err != nil {
				fmt.Fprintf(&inspect, "{\"sandbox\":%q,\"error\":%q}\n", sb.ID(), err)
			}
			inspect.Write(append(bytes.TrimSpace(raw), '\n'))
		}
		dirs := slices.Compact(slices.Sorted(maps.Values(c.Cgroups)))
		writeCgroups(&cgroups, dirs)
		writeProcesses(&processes, sb.ID(), dirs)
		writeMounts(&mounts, c.Workspace)
	}
	var log, tape bytes.Buffer
	for _, path := range slices.Sorted(maps.Keys(since.logs)) {
		text, err := readFrom(path, since.logs[path])
		if err != nil {
			fmt.Fprintf(&log, "%s: %v\n", filepath.Base(path), err)
		}
		log.Write(tail(text, maxArtifact/2))
	}
	if since.tape >= 0 {
		calls, _, err := tg.Observer.Tape(since.tape)
		if err != nil {
			fmt.Fprintf(&tape, "%v\n", err)
		}
		for _, call := range calls {
			call.Body = t.withoutCanaries(captureTape, call.Body) // before the encoding hides them
			if line, err := json.Marshal(call); err == nil {
				tape.Write(append(line, '\n'))
			}
		}
	}
	for _, f := range []struct {
		name string
		body []byte
	}{
		{"capture-1-inspect.jsonl", inspect.Bytes()}, {"capture-2-cgroups.txt", cgroups.Bytes()}, {"capture-3-processes.txt", processes.Bytes()},
		{"capture-4-mounts.txt", mounts.Bytes()}, {"capture-5-runtime.log", log.Bytes()}, {captureTape, tape.Bytes()},
	} {
		if len(f.body) > 0 {
			t.Artifact(f.name, t.withoutCanaries(f.name, f.body))
		}
	}
}

// withoutCanaries blots the case's tokens out, since evidence must not spread what it searches for,
// and observes where they were. Where a canary may not be, [T.findCanary] judges it.
func (t *T) withoutCanaries(name string, body []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, _ := t.observed["canaries-in-"+name].([]string)
	for _, c := range t.canaries {
		if !bytes.Contains(body, []byte(c.token)) {
			continue
		}
		body = bytes.ReplaceAll(body, []byte(c.token), []byte("[canary "+c.name+"]"))
		if !slices.Contains(found, c.name) {
			found = append(found, c.name)
		}
	}
	if len(found) > 0 {
		t.observed["canaries-in-"+name] = found
	}
	return body
}

func writeCgroups(w *bytes.Buffer, dirs []string) {
	for _, dir := range dirs {
		for _, name := range cgroupFiles {
			path := filepath.Join(dir, name)
			body, err := os.ReadFile(path)
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				body = []byte(err.Error())
			}
			fmt.Fprintf(w, "%s: %s\n", path, strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", "; "))
		}
	}
}

// writeProcesses lists each process of the sandbox's cgroups once.
func writeProcesses(w *bytes.Buffer, sandbox string, dirs []string) {
	seen := map[string]bool{}
	for _, dir := range dirs {
		body, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, pid := range strings.Fields(string(body)) {
			n, err := strconv.Atoi(pid)
			if err != nil || seen[pid] || len(seen) >= captureProcesses {
				continue
			}
			seen[pid] = true
			if p, err := proctable.ReadProcess(n); err == nil {
				fmt.Fprintf(w, "%s %d %c %q %q\n", sandbox, p.Pid, p.State, p.Name, p.Command[:min(len(p.Command), captureCommand)])
			}
		}
	}
}

func writeMounts(w *bytes.Buffer, workspace string) {
	if workspace == "" {
		return
	}
	list, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !below(m.Mountpoint, workspace), false })
	if err != nil {
		fmt.Fprintf(w, "%s: %v\n", workspace, err)
	}
	for _, m := range list {
		fmt.Fprintf(w, "%d %d %d:%d %s %s %s - %s %s %s\n", m.ID, m.Parent, m.Major, m.Minor, m.Root, m.Mountpoint, m.Options, m.FSType, m.Source, m.VFSOptions)
	}
}

// tail is the end of b, where the reason of a failure is.
func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }
