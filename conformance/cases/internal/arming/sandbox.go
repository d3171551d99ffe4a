// SPDX-License-Identifier: Apache-2.0

package arming

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Usage plants a file in a workspace through the API. What else is written meanwhile may add to
// both figures: they must have grown at least by what was planted.
func Usage(ctx context.Context, t *conformance.T) error {
	sb := t.Sandbox(ctx, target.Spec{})
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	device, err := oracle.StatUsage(c.Workspace)
	if err != nil {
		return err
	}
	walk, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}
	parent, err := oracle.StatUsage(filepath.Dir(c.Workspace))
	if err != nil {
		return err
	}
	const size = 4 << 20
	if err := sb.Files().Write(ctx, "planted", make([]byte, size)); err != nil {
		return err
	}
	deviceAfter, err := oracle.StatUsage(c.Workspace)
	if err != nil {
		return err
	}
	walkAfter, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}
	bytes, inodes := walkAfter.Bytes-walk.Bytes, walkAfter.Inodes-walk.Inodes
	t.Observe("walk", map[string]int64{"bytes": bytes, "inodes": inodes})
	t.Observe("statfs", map[string]int64{"bytes": deviceAfter.Bytes - device.Bytes, "inodes": deviceAfter.Inodes - device.Inodes})
	if bytes < size || inodes < 1 {
		t.Fail("planted-missed", "a file of %d bytes is %d bytes and %d inodes in the walk", size, bytes, inodes)
	}
	// On a filesystem that others use too, theirs may vanish at the same time.
	if grown := deviceAfter.Bytes - device.Bytes; device.Device != parent.Device && grown < size {
		t.Fail("planted-missed", "a file of %d bytes is %d in statfs", size, grown)
	}
	t.Witness("bytes", bytes)
	return nil
}

// The cgroup arming plants this much, far above what a runtime's own needs vary by, and holds it so
// long that a busy machine still samples it.
const (
	plantedMemory = 96 << 20
	plantedHold   = 4 * time.Second
)

// Cgroup plants memory, tasks and computation in a sandbox.
func Cgroup(ctx context.Context, t *conformance.T) error {
	sb := t.Sandbox(ctx, target.Spec{PIDs: 200})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	// A target that sets no limit must not disarm the oracle: the case judges the limit.
	limit, err := group.PIDsLimit()
	if err != nil {
		return err
	}
	t.Observe("limit", limit)
	// The baseline is the least of some samples: one alone may catch a start that is under way.
	pids, memory := oracle.Unlimited, oracle.Unlimited
	samples := 0
	if _, err := attack.Eventually(ctx, 300*time.Millisecond, func() (bool, error) {
		p, err := group.PIDs()
		if err != nil {
			return false, err
		}
		m, err := group.Memory()
		pids, memory = min(pids, p), min(memory, m)
		samples++
		return samples >= 5, err
	}); err != nil {
		return err
	}
	// The plant must be in the samples, not only in the kernel's peak, which the start may have set.
	var current atomic.Int64
	stopCurrent := oracle.Probe(ctx, 10*time.Millisecond, time.Second, func(context.Context) error {
		m, err := group.Memory()
		current.Store(max(current.Load(), m))
		return err
	})
	stop := group.Watch(ctx, 10*time.Millisecond)
	_, err = attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "memory-hog", "-bytes", strconv.Itoa(plantedMemory), "-hold", plantedHold.String())})
	stopCurrent()
	if err == nil {
		_, err = attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "thread-bomb", "-procs", "8", "-threads", "5", "-seconds", "1")})
	}
	peaks := stop()
	if err != nil {
		return err
	}
	grown, tasks := current.Load()-memory, peaks.PIDs-pids
	t.Observe("peaks", map[string]int64{"pids": tasks, "memory": grown, "memoryPeak": peaks.MemoryPeak, "samples": peaks.Samples})
	if grown < plantedMemory*3/4 {
		t.Fail("planted-missed", "%d bytes touched raise the usage by %d", plantedMemory, grown)
	}
	if peaks.MemoryPeak != 0 && peaks.MemoryPeak < current.Load()-plantedMemory/4 {
		t.Fail("planted-missed", "the kernel's peak is %d, and %d were sampled", peaks.MemoryPeak, current.Load())
	}
	if tasks < 10 {
		t.Fail("planted-missed", "8 processes of 5 threads raise the tasks by %d", tasks)
	}
	if err := computation(ctx, t, sb, program, group); err != nil {
		return err
	}
	t.Witness("mib", grown>>20)
	t.Witness("tasks", tasks)
	return nil
}

// computation plants a second of it. A target whose observer has no accounting of CPU time does not
// disarm the oracle for what else it reads; the case that needs it says so.
func computation(ctx context.Context, t *conformance.T, sb target.Sandbox, program string, group oracle.Cgroup) error {
	before, err := group.CPUTime()
	if err != nil {
		t.Observe("no-cpu-time", err.Error())
		return nil
	}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "spin", "-procs", "2", "-seconds", "1.5")}); err != nil {
		return err
	}
	after, err := group.CPUTime()
	if err != nil {
		return err
	}
	t.Observe("cpuMs", (after - before).Milliseconds())
	if after-before < 100*time.Millisecond { // of 3 s that were asked for: others may have the CPUs
		t.Fail("planted-missed", "two processes that compute for 1.5 s raise the CPU time by %s", after-before)
	}
	return nil
}

// Tape makes a sandbox and looks for the calls that this must have caused.
func Tape(ctx context.Context, t *conformance.T) error {
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	sb := t.Sandbox(ctx, target.Spec{})
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	calls, next, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	made, started := 0, 0
	for _, call := range calls {
		switch {
		case call.Method == "POST" && strings.HasSuffix(call.Path, "/containers/create") && call.Status == 201 && strings.Contains(call.Query+string(call.Body), c.Name):
			made++
		case call.Method == "POST" && strings.HasSuffix(call.Path, "/"+c.ID+"/start"):
			started++
		}
	}
	if made != 1 || started != 1 {
		t.Fail("planted-missed", "the tape shows %d creates and %d starts of one sandbox", made, started)
	}
	if again, _, err := t.Target().Observer.Tape(next); err != nil {
		return err
	} else if len(again) > len(calls) {
		t.Fail("false-positive", "calls are reported again")
	}
	t.Witness("calls", int64(len(calls)))
	return nil
}

// Wire sends one valid request byte by byte, so that a refusal of a changed one means something.
func Wire(ctx context.Context, t *conformance.T) error {
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	body := fmt.Sprintf(`{"invocationId":"arming","argv":["%s","--allow-outside-sandbox","noop"],"cwd":"","timeoutMs":20000,"maxOutputBytes":65536}`, program)
	req := target.RawRequest{Op: "exec", Method: "POST", Target: "/v1/sandboxes/" + sb.ID() + "/exec", WorkspaceID: sb.WorkspaceID(), SandboxID: sb.ID(), Body: []byte(body)}
	res, err := t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return err
	}
	if res.Status != 200 {
		t.Fail("planted-missed", "a valid request is answered with status %d, code %q", res.Status, res.Code)
	}
	req.Token = "a.b.c"
	if res, err = t.Target().Wire.Raw(ctx, req); err != nil {
		return err
	}
	if res.Status != 401 || res.Code == "" {
		t.Fail("planted-missed", "a request without authority is seen as status %d, code %q", res.Status, res.Code)
	}
	t.Witness("answers", 2)
	return nil
}

// Engine plants a container and looks for it, and for its end.
func Engine(ctx context.Context, t *conformance.T) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	parent, err := attack.Parent(t)
	if err != nil {
		return err
	}
	label := t.Canary("label")
	id, err := engine.Make(ctx, oracle.Plant{Image: t.Image(), Argv: []string{"/plant"}, Labels: map[string]string{"hallmark.plant": label}, CgroupParent: parent})
	if err != nil {
		return err
	}
	ids, err := engine.Labelled(ctx, "hallmark.plant", label)
	if err != nil {
		return err
	}
	f, found, err := engine.Inspect(ctx, id)
	if err != nil {
		return err
	}
	if len(ids) != 1 || ids[0] != id || !found || f.Running || f.NetworkMode != "none" || f.Labels["hallmark.plant"] != label {
		t.Fail("planted-missed", "the planted container is seen as %v, found %v, running %v", ids, found, f.Running)
	}
	if err := engine.Remove(ctx, id); err != nil {
		return err
	}
	if _, found, err := engine.Inspect(ctx, id); err != nil {
		return err
	} else if found {
		t.Fail("false-positive", "the removed container is still seen")
	}
	t.Witness("containers", 1)
	return nil
}

// Control sends the request of the dead peer as a living one: it must be executed, so that the
// dead one's silence means something.
func Control(ctx context.Context, t *conformance.T) error {
	sb := t.Sandbox(ctx, target.Spec{})
	t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	before, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	r, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "alive", "-file", "/workspace/armed")
	if err != nil {
		return err
	}
	after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	attack.Witness(t, "alive", r)
	if _, err := os.Lstat(filepath.Join(c.Workspace, "armed")); err != nil {
		t.Fail("planted-missed", "the request of a living root peer left nothing: %v", err)
	}
	if after.Counts["invocations"]-before.Counts["invocations"] != 1 {
		t.Fail("planted-missed", "one executed request is counted as %d", after.Counts["invocations"]-before.Counts["invocations"])
	}
	t.Witness("executed", r.Counts["executed"])
	t.NeedWitness("executed", 1)
	return nil
}

// Network runs the attack in a container on the lab's network: every listener and the capture
// must see it.
func Network(ctx context.Context, t *conformance.T) error {
	namespace, err := t.Target().Observer.NetworkNamespace()
	if err != nil {
		return err
	}
	network, err := t.Target().Observer.LabNetwork()
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	sb := t.Sandbox(ctx, target.Spec{}) // its workspace holds the program that the container runs
	t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	trap, err := oracle.SetTrap(namespace, t.Canary("packet"))
	if err != nil {
		return err
	}
	t.Cleanup(func(context.Context) error { return trap.Close() })
	argv := append(attack.Command("/plant", "network", "-token", trap.Token()), trap.Targets()...)
	parent, err := attack.Parent(t)
	if err != nil {
		return err
	}
	id, err := engine.Make(ctx, oracle.Plant{
		Image: t.Image(), Network: network, CgroupParent: parent, Runtime: "runc", Argv: append(argv, "udp://"+oracle.OutsideAddress+":53", "tcp://"+oracle.OutsideAddress+":443", "packet://"), Binary: filepath.Join(c.Workspace, conformance.TenantProgram),
	})
	if err != nil {
		return err
	}
	out, code, err := engine.Output(ctx, id)
	if err != nil {
		return err
	}
	t.Artifact("plant.txt", out)
	if code != 0 {
		return fmt.Errorf("the planted container ended with %d: %.300s", code, out)
	}
	sink, bare, frame := false, false, false
	look := func() {
		for _, e := range trap.Seen() {
			sink = sink || strings.Contains(e.Peer, "> "+oracle.SinkAddress+" ")
			bare = bare || !e.Token && strings.Contains(e.Peer, "> "+oracle.OutsideAddress+" proto 6")
			frame = frame || strings.Contains(e.Peer, "0x88b5")
		}
	}
	// The sockets' queues are read within the trap's own period, on a loaded host a little later.
	// The frame is the attack's last, so all that is looked for is waited for.
	if _, err := attack.Eventually(ctx, 5*time.Second, func() (bool, error) {
		look()
		n := trap.Counts()
		return n["tcp-token"] > 0 && n["udp-token"] > 0 && n["capture-token"] > 0 && sink && bare && frame, nil
	}); err != nil {
		return err
	}
	counts := trap.Counts()
	t.Observe("trap", counts)
	for _, part := range []string{"tcp-token", "udp-token", "capture-token"} {
		if counts[part] == 0 {
			t.Fail("planted-missed", "%s saw nothing of the container on the lab's network: %.300s", strings.TrimSuffix(part, "-token"), out)
		}
	}
	if !sink {
		t.Fail("planted-missed", "no packet to the sink address was captured")
	}
	if !bare {
		t.Fail("planted-missed", "no TCP handshake to the outside address was captured")
	}
	if !frame {
		t.Fail("planted-missed", "no frame of the attack's ethertype was captured")
	}
	t.Witness("events", counts["attack"])
	return nil
}
