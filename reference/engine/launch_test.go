// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/docker/go-connections/nat"
	"github.com/docker/go-units"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

var (
	testCfg  = Config{Socket: "/s", Runtime: "runsc", CgroupParent: "/parent", Ceilings: api.Resources{CPUs: 2000, MemoryBytes: 1 << 30, PIDs: 500, WorkspaceBytes: 1 << 30, WorkspaceInodes: 1 << 20}}
	testSpec = Spec{
		Name: "hallmark-0123456789abcdef0123456789abcdef", Image: Image{ID: "sha256:i", envNames: []string{"FOO"}},
		Workspace: "/ws/a", Supervisor: "/sup/b", Resources: api.Resources{CPUs: 1000, MemoryBytes: 1 << 28, PIDs: 100, WorkspaceBytes: 1 << 24, WorkspaceInodes: 100},
		WorkerID: "w", BootEpoch: "e", SandboxID: "s", Generation: 1, Mode: api.Production,
	}
)

// inspected is what a faithful engine would answer for the request of s.
func inspected(s Spec) container.InspectResponse {
	req := (&Engine{cfg: testCfg}).build(s)
	req.host.MaskedPaths, req.host.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
	c := container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: "id", Name: "/" + s.Name, Image: s.Image.ID, Path: req.config.Entrypoint[0], Args: req.config.Cmd,
			State: &container.State{}, HostConfig: req.host,
		},
		Config: req.config, NetworkSettings: &container.NetworkSettings{},
	}
	for _, m := range req.host.Mounts {
		c.Mounts = append(c.Mounts, container.MountPoint{Type: m.Type, Source: m.Source, Destination: m.Target, RW: !m.ReadOnly, Propagation: m.BindOptions.Propagation})
	}
	return c
}

// What was asked for the workspace is what there must be, either way.
func TestWorkspaceFlagIsCompared(t *testing.T) {
	for _, asked := range []bool{false, true} {
		want, other := testSpec, testSpec
		want.ReadOnly, other.ReadOnly = asked, !asked
		if err := CheckLaunch(inspected(want), want, testCfg); err != nil {
			t.Errorf("read-only %t: %v", asked, err)
		}
		if err := CheckLaunch(inspected(other), want, testCfg); err == nil {
			t.Errorf("read-only %t was asked, the other is there and passes", asked)
		}
	}
}

func TestFaithfulEnginePasses(t *testing.T) {
	if err := CheckLaunch(inspected(testSpec), testSpec, testCfg); err != nil {
		t.Error(err)
	}
}

// TestEveryDifferenceIsSeen changes one property at a time, as a defect of the builder or of
// the engine would.
func TestEveryDifferenceIsSeen(t *testing.T) {
	yes, other := true, int64(7)
	for name, change := range map[string]func(c *container.InspectResponse){
		"started":       func(c *container.InspectResponse) { c.State.Running = true },
		"name":          func(c *container.InspectResponse) { c.Name = "/hallmark" },
		"image id":      func(c *container.InspectResponse) { c.Image = "sha256:other" },
		"runtime":       func(c *container.InspectResponse) { c.HostConfig.Runtime = "runc" },
		"cgroup parent": func(c *container.InspectResponse) { c.HostConfig.CgroupParent = "" },
		"network mode":  func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "host" },
		"networks": func(c *container.InspectResponse) {
			c.NetworkSettings.Networks = map[string]*network.EndpointSettings{"bridge": nil}
		},
		"port bindings":        func(c *container.InspectResponse) { c.HostConfig.PortBindings = nat.PortMap{"80/tcp": nil} },
		"publish all ports":    func(c *container.InspectResponse) { c.HostConfig.PublishAllPorts = true },
		"links":                func(c *container.InspectResponse) { c.HostConfig.Links = []string{"x"} },
		"extra hosts":          func(c *container.InspectResponse) { c.HostConfig.ExtraHosts = []string{"x"} },
		"dns":                  func(c *container.InspectResponse) { c.HostConfig.DNS = []string{"192.0.2.1"} },
		"privileged":           func(c *container.InspectResponse) { c.HostConfig.Privileged = true },
		"read-only root":       func(c *container.InspectResponse) { c.HostConfig.ReadonlyRootfs = false },
		"dropped capabilities": func(c *container.InspectResponse) { c.HostConfig.CapDrop = nil },
		"added capabilities":   func(c *container.InspectResponse) { c.HostConfig.CapAdd = append(c.HostConfig.CapAdd, "CAP_SYS_ADMIN") },
		"security options": func(c *container.InspectResponse) {
			c.HostConfig.SecurityOpt = append(c.HostConfig.SecurityOpt, "seccomp=unconfined")
		},
		"user namespace mode":   func(c *container.InspectResponse) { c.HostConfig.UsernsMode = "host" },
		"pid mode":              func(c *container.InspectResponse) { c.HostConfig.PidMode = "host" },
		"uts mode":              func(c *container.InspectResponse) { c.HostConfig.UTSMode = "host" },
		"ipc mode":              func(c *container.InspectResponse) { c.HostConfig.IpcMode = "shareable" },
		"cgroup namespace mode": func(c *container.InspectResponse) { c.HostConfig.CgroupnsMode = "host" },
		"masked paths":          func(c *container.InspectResponse) { c.HostConfig.MaskedPaths = nil },
		"read-only paths":       func(c *container.InspectResponse) { c.HostConfig.ReadonlyPaths = nil },
		"extra groups":          func(c *container.InspectResponse) { c.HostConfig.GroupAdd = []string{"0"} },
		"devices":               func(c *container.InspectResponse) { c.HostConfig.Devices = []container.DeviceMapping{{}} },
		"sysctls":               func(c *container.InspectResponse) { c.HostConfig.Sysctls = map[string]string{"a": "b"} },
		"oom kill disabled":     func(c *container.InspectResponse) { c.HostConfig.OomKillDisable = &yes },
		"oom score adjustment":  func(c *container.InspectResponse) { c.HostConfig.OomScoreAdj = -1000 },
		"memory":                func(c *container.InspectResponse) { c.HostConfig.Memory = 0 },
		"memory and swap":       func(c *container.InspectResponse) { c.HostConfig.MemorySwap = -1 },
		"pids limit":            func(c *container.InspectResponse) { c.HostConfig.PidsLimit = &other },
		"pids limit absent":     func(c *container.InspectResponse) { c.HostConfig.PidsLimit = nil },
		"cpu period":            func(c *container.InspectResponse) { c.HostConfig.CPUPeriod = 0 },
		"cpu quota":             func(c *container.InspectResponse) { c.HostConfig.CPUQuota = 0 },
		"ulimits":               func(c *container.InspectResponse) { c.HostConfig.Ulimits = c.HostConfig.Ulimits[1:] },
		"ulimit value": func(c *container.InspectResponse) {
			c.HostConfig.Ulimits[0] = &units.Ulimit{Name: "core", Hard: -1, Soft: -1}
		},
		"shm size":        func(c *container.InspectResponse) { c.HostConfig.ShmSize = 1 << 30 },
		"tmpfs":           func(c *container.InspectResponse) { c.HostConfig.Tmpfs["/tmp"] = "rw" },
		"another tmpfs":   func(c *container.InspectResponse) { c.HostConfig.Tmpfs["/var"] = "rw" },
		"binds":           func(c *container.InspectResponse) { c.HostConfig.Binds = []string{"/:/host"} },
		"volumes from":    func(c *container.InspectResponse) { c.HostConfig.VolumesFrom = []string{"x"} },
		"image volumes":   func(c *container.InspectResponse) { c.Config.Volumes = map[string]struct{}{"/data": {}} },
		"requested mount": func(c *container.InspectResponse) { c.HostConfig.Mounts[0].ReadOnly = false },
		"mount that appeared": func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: mount.TypeVolume, Destination: "/data", RW: true})
		},
		"mount that is writable":  func(c *container.InspectResponse) { c.Mounts[0].RW = true },
		"mount source":            func(c *container.InspectResponse) { c.Mounts[1].Source = "/ws/other" },
		"mount propagation":       func(c *container.InspectResponse) { c.Mounts[1].Propagation = "rshared" },
		"log driver":              func(c *container.InspectResponse) { c.HostConfig.LogConfig.Type = "json-file" },
		"restart policy":          func(c *container.InspectResponse) { c.HostConfig.RestartPolicy.Name = "always" },
		"auto remove":             func(c *container.InspectResponse) { c.HostConfig.AutoRemove = true },
		"init":                    func(c *container.InspectResponse) { c.HostConfig.Init = &yes },
		"user":                    func(c *container.InspectResponse) { c.Config.User = "" },
		"hostname":                func(c *container.InspectResponse) { c.Config.Hostname = "x" },
		"entrypoint":              func(c *container.InspectResponse) { c.Config.Entrypoint = []string{"/bin/sh"} },
		"command":                 func(c *container.InspectResponse) { c.Config.Cmd = []string{"supervisor", "x"} },
		"path":                    func(c *container.InspectResponse) { c.Path = "/bin/sh" },
		"working directory":       func(c *container.InspectResponse) { c.Config.WorkingDir = "/workspace" },
		"environment of an image": func(c *container.InspectResponse) { c.Config.Env = append(c.Config.Env, "LD_PRELOAD=/x") },
		"stop signal":             func(c *container.InspectResponse) { c.Config.StopSignal = "" },
		"health check":            func(c *container.InspectResponse) { c.Config.Healthcheck = nil },
		"terminal":                func(c *container.InspectResponse) { c.Config.Tty = true },
		"label":                   func(c *container.InspectResponse) { c.Config.Labels[LabelSandbox] = "other" },
		"incomplete":              func(c *container.InspectResponse) { c.HostConfig = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := inspected(testSpec)
			change(&c)
			if err := CheckLaunch(c, testSpec, testCfg); err == nil {
				t.Error("the difference was not seen")
			}
		})
	}
}

// TestPropertiesCoverTheHostConfig fails when the client's HostConfig grows a member that
// nobody has decided about.
func TestPropertiesCoverTheHostConfig(t *testing.T) {
	decided := strings.Fields(`Binds ContainerIDFile LogConfig NetworkMode PortBindings RestartPolicy AutoRemove VolumeDriver VolumesFrom
		CapAdd CapDrop CgroupnsMode DNS DNSOptions DNSSearch ExtraHosts GroupAdd IpcMode Cgroup Links OomScoreAdj PidMode Privileged
		PublishAllPorts ReadonlyRootfs SecurityOpt Tmpfs UTSMode UsernsMode ShmSize Sysctls Runtime Isolation Resources Mounts
		MaskedPaths ReadonlyPaths Init`)
	// These are inert: a terminal's size, and options of a volume driver that is not used.
	inert := strings.Fields("ConsoleSize Annotations StorageOpt")
	known := map[string]bool{}
	for _, n := range append(decided, inert...) {
		known[n] = true
	}
	typ := reflect.TypeFor[container.HostConfig]()
	if typ.NumField() < 30 {
		t.Fatalf("HostConfig has %d members", typ.NumField())
	}
	for i := range typ.NumField() {
		if !known[typ.Field(i).Name] {
			t.Errorf("HostConfig.%s is not in the launch profile", typ.Field(i).Name)
		}
	}
}

func normalised(t *testing.T, s Spec, change func(map[string]any)) string {
	t.Helper()
	text, err := json.Marshal(inspected(s))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(m)
	}
	if text, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	out, err := Normalise(text, s, testCfg)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestNormaliseHidesTheSandboxAndNothingElse(t *testing.T) {
	base := normalised(t, testSpec, nil)
	other := Spec{
		Name: "hallmark-ffffffffffffffffffffffffffffffff", Image: Image{ID: "sha256:j"}, Workspace: "/ws/z", Supervisor: "/other/sup",
		Resources: api.Resources{CPUs: 1, MemoryBytes: 2, PIDs: 3, WorkspaceBytes: 4, WorkspaceInodes: 5},
		WorkerID:  "w2", BootEpoch: "e2", SandboxID: "s2", Generation: 9, Mode: api.Qualification,
	}
	if got := normalised(t, other, nil); got != base {
		t.Errorf("profiles of two sandboxes differ:\n%s\n%s", base, got)
	}
	section := func(m map[string]any, name string) map[string]any { return m[name].(map[string]any) }
	for name, change := range map[string]func(m map[string]any){
		"changed member": func(m map[string]any) { section(m, "HostConfig")["Privileged"] = true },
		"unknown member": func(m map[string]any) { section(m, "HostConfig")["NewInThisEngine"] = 1 },
		"environment":    func(m map[string]any) { section(m, "Config")["Env"] = []string{"LD_PRELOAD=/x"} },
		"ulimit gone":    func(m map[string]any) { section(m, "HostConfig")["Ulimits"] = nil },
		"label gone":     func(m map[string]any) { delete(section(m, "Config")["Labels"].(map[string]any), LabelMode) },
		"mount": func(m map[string]any) {
			m["Mounts"] = append(m["Mounts"].([]any), map[string]any{"Source": "/", "Destination": "/x"})
		},
		"apparmor": func(m map[string]any) { m["AppArmorProfile"] = "unconfined" },
	} {
		if normalised(t, testSpec, change) == base {
			t.Errorf("%s does not show in the profile", name)
		}
	}
	for name, change := range map[string]func(m map[string]any){
		"image label": func(m map[string]any) { section(m, "Config")["Labels"].(map[string]any)["org.example"] = "x" },
		"exposed ports": func(m map[string]any) {
			section(m, "Config")["ExposedPorts"] = map[string]any{"80/tcp": map[string]any{}}
		},
	} {
		if normalised(t, testSpec, change) != base {
			t.Errorf("%s of an image shows in the profile", name)
		}
	}
	// The workspace's flag is a placeholder in the workspace's rows, and a flag in any other.
	readOnly := testSpec
	readOnly.ReadOnly = true
	if got := normalised(t, readOnly, nil); got != base {
		t.Errorf("the profile of a read-only workspace differs:\n%s\n%s", base, got)
	}
	if strings.Count(base, "per-invocation") != 2 {
		t.Errorf("placeholders in %s", base)
	}
	for section, flag := range map[string]string{"HostConfig": "ReadOnly", "": "RW"} {
		if normalised(t, testSpec, func(m map[string]any) {
			rows, _ := m["Mounts"].([]any)
			if section != "" {
				rows, _ = m[section].(map[string]any)["Mounts"].([]any)
			}
			for _, row := range rows {
				if r := row.(map[string]any); r["Target"] == SupervisorTarget || r["Destination"] == SupervisorTarget {
					r[flag] = flag == "RW"
				}
			}
		}) == base {
			t.Errorf("%s of the supervisor's mount does not show in the profile", flag)
		}
	}
	if _, err := Normalise([]byte(`{"Config":{}}`), testSpec, testCfg); err == nil {
		t.Error("an incomplete answer was accepted")
	}
}

func TestSpecIsValidated(t *testing.T) {
	if err := testSpec.validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(s *Spec){
		"name":       func(s *Spec) { s.Name = "x" },
		"name case":  func(s *Spec) { s.Name = strings.ToUpper(s.Name) },
		"image":      func(s *Spec) { s.Image.ID = "" },
		"volumes":    func(s *Spec) { s.Image.Volumes = []string{"/x"} },
		"workspace":  func(s *Spec) { s.Workspace = "ws" },
		"traversal":  func(s *Spec) { s.Supervisor = "/a/../b" },
		"memory":     func(s *Spec) { s.Resources.MemoryBytes = 0 },
		"sandbox":    func(s *Spec) { s.SandboxID = "" },
		"generation": func(s *Spec) { s.Generation = 0 },
	} {
		s := testSpec
		change(&s)
		if s.validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRecorderKeepsTheFirstProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "launch-profile.json")
	a, b := []byte(`{"a":1}`), []byte(`{"a":2}`)
	da, db := digestOf(a), digestOf(b)
	r, err := NewProfileRecorder(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Observe(db, a); err == nil {
		t.Error("a wrong digest was accepted")
	}
	for range 2 {
		if err := r.Observe(da, a); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, a) {
		t.Errorf("recorded %q, %v", got, err)
	}
	half := filepath.Join(filepath.Dir(path), ".launch-profile-1") // of a process that was cut off
	if err := os.WriteFile(half, a[:3], 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err = NewProfileRecorder(path); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("beside the profile: %v, %v", left, err)
	}
	if err := r.Observe(db, b); !errors.Is(err, ErrLaunch) {
		t.Errorf("another profile after a restart gave %v", err)
	}
	if err := r.Observe(da, a); err != nil {
		t.Error(err)
	}
}

func TestHeadKeepsTheFirstBytes(t *testing.T) {
	h := &head{left: 4}
	var stream bytes.Buffer
	w := stdcopy.NewStdWriter(&stream, stdcopy.Stderr)
	if _, err := io.WriteString(w, "abcdefgh"); err != nil {
		t.Fatal(err)
	}
	if _, err := stdcopy.StdCopy(io.Discard, h, iotest.OneByteReader(&stream)); err != nil || string(h.text) != "abcd" {
		t.Errorf("kept %q, %v", h.text, err)
	}
}
