// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"time"
)

// Status is what one case came to. Only [Pass] is a pass.
type Status string

// The closed set of statuses. Every status but pass carries a reason code and a text.
const (
	Pass          Status = "pass"
	Fail          Status = "fail"
	Inconclusive  Status = "inconclusive"   // ran, no witness of the dangerous event
	Errored       Status = "error"          // the suite broke
	NotApplicable Status = "not-applicable" // a feature that the target does not claim
	NotRun        Status = "not-run"        // a prerequisite is missing, or an earlier step failed
	Waived        Status = "waived"
)

// Tier groups cases by cost and by what they disturb.
type Tier string

// Smoke cases take at most 5 s each; serial ones need a disposable engine.
const (
	Smoke  Tier = "smoke"
	Full   Tier = "full"
	Serial Tier = "serial"
)

// Feature is something that a target claims.
type Feature string

// Features that the present catalogue needs.
const (
	FeatureExec       Feature = "exec"
	FeatureFiles      Feature = "files"
	FeatureQuota      Feature = "quota"
	FeatureProtocol   Feature = "protocol"   // speaks the worker API with capabilities
	FeatureAdmission  Feature = "admission"  // starts pinned digests only
	FeatureSupervisor Feature = "supervisor" // control socket in the sandbox
	FeatureReconcile  Feature = "reconcile"
	FeatureNoNetwork  Feature = "no-network"
	FeatureCreds      Feature = "credentials"        // delivers secrets on FD 3 only
	FeatureOpenat2    Feature = "openat2-in-sandbox" // the tenant's kernel knows openat2(2)
)

// Part is an optional ability of the target's observer or controller that a case needs.
type Part string

// A missing part makes the cases that need it not-run, with the part as the reason.
const (
	PartWorkspacePath Part = "observer.workspace-path"
	PartCgroup        Part = "observer.cgroup"
	PartEngine        Part = "observer.engine"
	PartWorkerProcess Part = "observer.worker-process"
	PartNetwork       Part = "observer.network"
	PartTape          Part = "observer.tape"
	PartFoothold      Part = "controller.foothold"
	PartRestart       Part = "controller.restart"
	PartTerminate     Part = "controller.terminate" // the daemon can be asked to end, and its exit status is seen
	PartWire          Part = "runtime.wire"
	PartSecrets       Part = "controller.secrets"
	PartConcurrent    Part = "runtime.concurrent" // two operations can be under way at once
	PartAuthority     Part = "runtime.authority"  // capabilities can be minted and connections opened
	PartPeers         Part = "controller.peers"   // a second daemon can be started
)

// Oracle names a way of observing from outside. Each is armed once per run, before the first
// case: shown to detect a planted positive. An unarmed oracle makes its cases inconclusive.
type Oracle string

// Oracles of the present catalogue.
const (
	OracleTreeHash    Oracle = "tree-hash"   // planted change in a host tree is found
	OracleHeartbeat   Oracle = "heartbeat"   // a living writer is seen to be alive, a dead one dead
	OracleUsage       Oracle = "usage"       // statfs and st_blocks of the workspace follow a planted write
	OracleCgroup      Oracle = "cgroup"      // the sandbox's pids and memory files follow a planted load
	OracleProcess     Oracle = "process"     // host process table and /proc/<pid>/exe
	OracleMemory      Oracle = "memory"      // VmHWM of a process follows a planted allocation
	OracleCPU         Oracle = "cpu"         // the CPU time of a process follows a planted computation
	OracleNetwork     Oracle = "network"     // listeners and capture see a container on the lab's network
	OracleTape        Oracle = "tape"        // the tape records a planted engine call
	OracleWire        Oracle = "wire"        // a valid request passes, so that a refusal means something
	OracleEngine      Oracle = "engine"      // engine inspect sees a planted container
	OracleEngineLog   Oracle = "engine-log"  // what a planted container prints is heard, and found on the engine's disk
	OracleControl     Oracle = "control"     // a living root peer of the control socket is accepted
	OracleNeighbour   Oracle = "neighbour"   // the quiet neighbour's probe sees a planted stall
	OracleSearch      Oracle = "search"      // a planted token is found in names, contents, links, attributes and raw images
	OracleReply       Oracle = "reply"       // a changed, missing, miscounted or unmarked byte of a reply is found
	OracleHostSocket  Oracle = "host-socket" // a listener at an abstract name of the host counts who comes
	OracleDescriptors Oracle = "descriptors" // a descriptor that a program was handed is found by its look
	OracleAccess      Oracle = "access"      // a planted read of a watched file is seen
)

// Kill says that a mutant makes the case fail, and that this reason code comes first.
type Kill struct {
	Mutant string // "m06": fixtures/mutants/m06-*.patch, or "runc" for the control runtime
	Reason string
}

// Case is one property with its attack. It is a value: the catalogue, the golden list, the
// report and the verdict are computed from it without a run.
type Case struct {
	ID       string // "FS-02"; never reused
	Revision int    // rises when the property or the oracle changes
	Title    string

	// One sentence each, for the catalogue page.
	Requirement, Threat, Attack, Witness, Oracle string
	Precedent                                    string

	Tier     Tier
	Control  bool // R: also run on runc
	PerImage bool // Run is called once for each workload image; otherwise once, with the first
	// Exclusive keeps everything else of the run still meanwhile: the case measures what others
	// would disturb (latencies of host and neighbour, the engine as a whole), or disturbs them.
	Exclusive bool
	Timeout   time.Duration
	Features  []Feature
	Needs     []Part
	Oracles   []Oracle
	Kills     []Kill

	// Run arranges, attacks, witnesses and judges. It reports through t only. A panic or a
	// returned error is the suite's fault: status error.
	Run func(ctx context.Context, t *T) error
}
