// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"context"
	"slices"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func identity() []Check {
	return []Check{
		{"describe", "A target says what it is, claims exec, files and only features that exist, and names only parts that exist, each once.", checkDescribe},
		{"ids", "Each sandbox has an id of its own, which stays, over the workspace that was asked for; a new one is ready.", checkIDs},
	}
}

var features = []conformance.Feature{
	conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureQuota, conformance.FeatureProtocol, conformance.FeatureAdmission,
	conformance.FeatureSupervisor, conformance.FeatureReconcile, conformance.FeatureNoNetwork, conformance.FeatureCreds, conformance.FeatureOpenat2,
}

var parts = []conformance.Part{
	conformance.PartWorkspacePath, conformance.PartCgroup, conformance.PartEngine, conformance.PartWorkerProcess, conformance.PartNetwork,
	conformance.PartTape, conformance.PartFoothold, conformance.PartRestart, conformance.PartWire, conformance.PartConcurrent,
	conformance.PartAuthority, conformance.PartPeers, conformance.PartSecrets, conformance.PartTerminate,
}

func checkDescribe(ctx context.Context, s *subject) error {
	d, err := s.tg.Runtime.Describe(ctx)
	if err != nil {
		return err
	}
	var f faults
	s.claims = d.Claims
	if d.Driver == "" {
		f.add("the description names no driver")
	}
	for i, c := range d.Claims {
		if !slices.Contains(features, conformance.Feature(c)) || slices.Contains(d.Claims[:i], c) {
			f.add("the claim %q is unknown or there twice; known are %q", c, features)
		}
	}
	for _, needed := range []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles} {
		if !slices.Contains(d.Claims, string(needed)) {
			f.add("%s is not claimed: no case can run", needed)
		}
	}
	for i, p := range s.tg.Parts {
		if !slices.Contains(parts, conformance.Part(p)) || slices.Contains(s.tg.Parts[:i], p) {
			f.add("the part %q is unknown or there twice; known are %q", p, parts)
		}
	}
	if s.tg.Close == nil {
		f.add("the target has no Close")
	}
	return f.join()
}

func checkIDs(ctx context.Context, s *subject) error {
	var f faults
	seen := map[string]bool{}
	for range 3 {
		sb, err := s.create(ctx, target.Spec{})
		if err != nil {
			return err
		}
		if id := sb.ID(); id == "" || seen[id] || id != sb.ID() {
			f.add("the id %q is empty, not new, or changes", id)
		}
		seen[sb.ID()] = true
		if want := s.workspaces[len(s.workspaces)-1]; sb.WorkspaceID() != want {
			f.add("the workspace is %q, asked for %q", sb.WorkspaceID(), want)
		}
		state, err := sb.State(ctx)
		if err != nil || state != "ready" {
			f.add("the state of a new sandbox is %q, %v", state, err)
		}
	}
	return f.join()
}
