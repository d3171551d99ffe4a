// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Profiles of the catalogue. Each requires every smoke and full case whose features it holds, but for the two lists.
// One that no case serves yet is there all the same: demanding it is a finding.
const (
	ProfileBaseline    = "baseline"    // runs commands over a workspace, without a network
	ProfileQuota       = "quota"       // the workspace is bounded
	ProfileCredentials = "credentials" // secrets arrive by descriptor 3 only, and none outlives its worker
	ProfileLifecycle   = "lifecycle"   // what a dead daemon left is cleaned up, and nothing else
	ProfileProtocol    = "protocol"    // speaks the worker API, with a supervisor in the sandbox
	ProfileAdmission   = "admission"   // starts pinned digests only
	ProfileOpenat2     = "openat2-in-sandbox"
	ProfileVMCore      = "vm-core"  // the few cases that show on an emulated machine that the same holds there
	ProfileVMQuota     = "vm-quota" // what bounds a workspace, on an emulated machine
)

// vmCore and vmQuota are lists: an emulated machine takes ten times as long for a case, so it runs those whose
// outcome could depend on what differs there, the kernel, cgroup v2, the engine and the file system.
var (
	vmCore  = []string{"CR-01", "IM-01", "IM-05", "IP-01", "IP-03", "KE-06", "LC-04", "PR-05"}
	vmQuota = []string{"QT-01", "QT-02"}
)

// profiles are those of the catalogue, sorted by name. The core of a profile is what it is about.
func profiles() []evidence.Profile {
	of := func(name string, core Feature, others ...Feature) evidence.Profile {
		p := evidence.Profile{
			Name: name, Core: []string{string(core)}, Features: []string{string(core)}, Tiers: []string{string(Full), string(Smoke)},
		}
		for _, f := range others {
			p.Features = append(p.Features, string(f))
		}
		return p
	}
	// A list demands its cases and no tier.
	list := func(name string, cases []string, core Feature, others ...Feature) evidence.Profile {
		p := of(name, core, others...)
		p.Tiers, p.Cases = []string{}, slices.Clone(cases)
		return p
	}
	return []evidence.Profile{
		of(ProfileAdmission, FeatureAdmission, FeatureExec, FeatureFiles, FeatureProtocol),
		of(ProfileBaseline, FeatureExec, FeatureFiles, FeatureNoNetwork),
		of(ProfileCredentials, FeatureCreds, FeatureExec, FeatureFiles, FeatureProtocol, FeatureReconcile),
		of(ProfileLifecycle, FeatureReconcile, FeatureExec, FeatureFiles),
		of(ProfileOpenat2, FeatureOpenat2, FeatureExec, FeatureFiles),
		of(ProfileProtocol, FeatureProtocol, FeatureExec, FeatureFiles, FeatureSupervisor),
		of(ProfileQuota, FeatureQuota, FeatureExec, FeatureFiles),
		list(ProfileVMCore, vmCore, FeatureExec, FeatureFiles, FeatureAdmission, FeatureCreds, FeatureProtocol, FeatureReconcile, FeatureSupervisor),
		list(ProfileVMQuota, vmQuota, FeatureQuota, FeatureExec, FeatureFiles),
	}
}

// Profiles are the names of all profiles, sorted.
func Profiles() []string {
	var out []string
	for _, p := range profiles() {
		out = append(out, p.Name)
	}
	return out
}

// ReferenceProfiles are those that a worker like the reference one is qualified with, sorted:
// all that the present cases serve, but for the lists of an emulated machine, which say less.
func ReferenceProfiles() []string {
	return []string{ProfileAdmission, ProfileBaseline, ProfileCredentials, ProfileLifecycle, ProfileProtocol, ProfileQuota}
}
