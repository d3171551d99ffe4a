// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/gowebpki/jcs"
)

// Normalise turns the engine's raw inspect output of a created container into the
// canonical launch profile: RFC 8785 JSON that is the same for every sandbox of one
// worker. What is particular to a sandbox, or to an invocation, becomes a placeholder, what the caller chose
// becomes its ceiling, what the image adds and we neutralise is left out. Everything else
// that the engine says about Config and HostConfig stays in, known to this code or not, so
// that an engine that adds or changes something changes the digest.
func Normalise(raw []byte, s Spec, cfg Config) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var in map[string]any
	if err := d.Decode(&in); err != nil {
		return nil, fmt.Errorf("decode inspect output: %w", err)
	}
	host, ok1 := in["HostConfig"].(map[string]any)
	conf, ok2 := in["Config"].(map[string]any)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("inspect output has no Config or HostConfig")
	}
	c := cfg.Ceilings
	host["CgroupParent"] = "<cgroup-parent>"
	host["Memory"] = c.MemoryBytes
	host["MemorySwap"] = c.MemoryBytes
	host["PidsLimit"] = c.PIDs
	host["CpuQuota"] = int64(c.CPUs) * cpuPeriod / 1000
	if err := ceilUlimits(host, c.WorkspaceBytes); err != nil {
		return nil, err
	}
	conf["Image"] = "<image>"
	conf["Env"] = setOnly(conf["Env"])
	conf["Labels"] = ourLabels(conf["Labels"])
	delete(conf, "ExposedPorts") // the image's word; nothing is published and there is no network
	delete(conf, "OnBuild")
	delete(conf, "Shell")
	paths := strings.NewReplacer(s.Workspace, "<workspace>", s.Supervisor, "<supervisor>")
	host["Mounts"] = sortMounts(perInvocation(replaceSources(host["Mounts"], paths), "Target", "ReadOnly"), "Target")
	out := map[string]any{
		"schema":          "hallmark.launch-profile.v1",
		"Path":            in["Path"],
		"Args":            in["Args"],
		"Platform":        in["Platform"],
		"Driver":          in["Driver"],
		"AppArmorProfile": in["AppArmorProfile"],
		"MountLabel":      in["MountLabel"],
		"ProcessLabel":    in["ProcessLabel"],
		"Config":          conf,
		"HostConfig":      host,
		"Mounts":          sortMounts(perInvocation(replaceSources(in["Mounts"], paths), "Destination", "RW"), "Destination"),
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode launch profile: %w", err)
	}
	canonical, err := jcs.Transform(text)
	if err != nil {
		return nil, fmt.Errorf("canonicalise launch profile: %w", err)
	}
	return canonical, nil
}

func ceilUlimits(host map[string]any, fsize int64) error {
	rows, _ := host["Ulimits"].([]any)
	for _, row := range rows {
		m, ok := row.(map[string]any)
		if !ok {
			return fmt.Errorf("ulimit row is not an object")
		}
		if m["Name"] == "fsize" {
			m["Hard"], m["Soft"] = fsize, fsize
		}
	}
	sort.Slice(rows, func(i, j int) bool { return name(rows[i], "Name") < name(rows[j], "Name") })
	return nil
}

// setOnly keeps the entries that set something; bare names only unset the image's.
func setOnly(env any) []string {
	rows, _ := env.([]any)
	out := []string{}
	for _, row := range rows {
		if s, ok := row.(string); ok && strings.Contains(s, "=") {
			out = append(out, s)
		}
	}
	sort.Strings(out)
	return out
}

// ourLabels keeps our label names without their values; the image's own labels do nothing.
func ourLabels(labels any) map[string]string {
	out := map[string]string{}
	m, _ := labels.(map[string]any)
	for _, l := range []string{LabelWorker, LabelEpoch, LabelSandbox, LabelGeneration, LabelMode} {
		if _, ok := m[l]; ok {
			out[l] = "<set>"
		}
	}
	return out
}

func replaceSources(rows any, paths *strings.Replacer) []any {
	list, _ := rows.([]any)
	for _, row := range list {
		if m, ok := row.(map[string]any); ok {
			if src, ok := m["Source"].(string); ok {
				m["Source"] = paths.Replace(src)
			}
		}
	}
	return list
}

// perInvocation replaces what says whether the workspace can be written: it differs between the
// containers of one sandbox, and [CheckLaunch] has compared it with what was asked. Nothing else of
// the row is touched, and no other row.
func perInvocation(rows []any, target, flag string) []any {
	for _, row := range rows {
		if m, ok := row.(map[string]any); ok && m[target] == WorkspaceTarget {
			m[flag] = "<per-invocation>"
		}
	}
	return rows
}

func sortMounts(rows []any, key string) []any {
	sort.Slice(rows, func(i, j int) bool { return name(rows[i], key) < name(rows[j], key) })
	return rows
}

func name(row any, key string) string {
	m, _ := row.(map[string]any)
	s, _ := m[key].(string)
	return s
}
