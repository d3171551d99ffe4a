// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestOOMCounterIsThatOfTheMemoryCgroup(t *testing.T) {
	v1 := &mountinfo.Info{FSType: "cgroup", Root: "/", Mountpoint: "/cg/memory", VFSOptions: "rw,memory"}
	pids := &mountinfo.Info{FSType: "cgroup", Root: "/", Mountpoint: "/cg/pids", VFSOptions: "rw,pids"}
	v2 := &mountinfo.Info{FSType: "cgroup2", Root: "/", Mountpoint: "/cg/unified"}
	below := &mountinfo.Info{FSType: "cgroup2", Root: "/part", Mountpoint: "/cg/part"}
	for name, tt := range map[string]struct {
		groups string
		mounts []*mountinfo.Info
		want   string
	}{
		"v1":                 {"9:name=systemd:/x\n4:memory:/lab/c\n3:pids:/lab/c\n", []*mountinfo.Info{pids, v1}, "/cg/memory/lab/c/memory.oom_control"},
		"v1 beside v2":       {"0::/\n4:memory,hugetlb:/lab/c\n", []*mountinfo.Info{v2, pids, v1}, "/cg/memory/lab/c/memory.oom_control"},
		"v2":                 {"0::/lab/c\n", []*mountinfo.Info{v2}, "/cg/unified/lab/c/memory.events"},
		"v2 shown in part":   {"0::/part/c\n", []*mountinfo.Info{below}, "/cg/part/c/memory.events"},
		"nothing is mounted": {"0::/lab/c\n", nil, ""},
		"no line":            {"", []*mountinfo.Info{v1, v2}, ""},
	} {
		got, err := findOOMCounter(tt.groups, tt.mounts)
		if got.path != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %q, %v", name, got.path, err)
		}
	}
}

func TestOOMCounterReadsBothForms(t *testing.T) {
	for name, tt := range map[string]struct {
		body   string
		killed bool
		bad    bool
	}{
		"v1 none": {"oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", false, false},
		"v1 some": {"oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", true, false},
		"v2":      {"low 0\nhigh 0\nmax 71\noom 1\noom_kill 1\noom_group_kill 0\n", true, false},
		"old":     {"oom_kill_disable 0\nunder_oom 0\n", false, true},
		"garbage": {"oom_kill x\n", false, true},
	} {
		c := oomCounter{filepath.Join(t.TempDir(), "file")}
		if err := os.WriteFile(c.path, []byte(tt.body), 0o600); err != nil {
			t.Fatal(err)
		}
		if killed, err := c.killed(); killed != tt.killed || (err != nil) != tt.bad {
			t.Errorf("%s: %v, %v", name, killed, err)
		}
	}
	if _, err := (oomCounter{"/nonexistent/hallmark"}).killed(); err == nil {
		t.Error("a cgroup that is gone has a counter")
	}
}
