// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// CohortDescriptor holds measured facts about the cohort and nothing else: no path, socket
// name, lab id, host name or boot time, so that two clones on one host give one id. Lists
// are sorted, except Runtime.Args whose order means something.
type CohortDescriptor struct {
	Arch           string            `json:"arch"` // as GOARCH spells it
	Kernel         CohortKernel      `json:"kernel"`
	CgroupMode     string            `json:"cgroupMode"` // v1, v2, hybrid
	LSMs           []string          `json:"lsms"`
	Engine         CohortEngine      `json:"engine"`
	Runtime        CohortRuntime     `json:"runtime"`
	Sandbox        CohortSandbox     `json:"sandbox"`
	Quota          CohortQuota       `json:"quota"`
	SwapAccounting bool              `json:"swapAccounting"`
	KernelCmdline  []string          `json:"kernelCmdline"` // security-relevant parameters only
	Mitigations    map[string]string `json:"mitigations"`   // /sys/devices/system/cpu/vulnerabilities
	Sysctls        map[string]string `json:"sysctls"`       // "fs.protected_hardlinks": "1"
}

// CohortKernel is what uname(2) says.
type CohortKernel struct {
	Release string `json:"release"`
	Build   string `json:"build"` // the version member of uname: build number and date
}

// CohortEngine is the container engine, by the digests of its programs.
type CohortEngine struct {
	Version          string   `json:"version"`
	EngineDigest     string   `json:"engineDigest"`
	ContainerdDigest string   `json:"containerdDigest"`
	ShimDigest       string   `json:"shimDigest"`
	StorageDriver    string   `json:"storageDriver"`
	ImageStore       string   `json:"imageStore"` // classic, containerd
	SecurityOptions  []string `json:"securityOptions"`
	UserNamespaces   bool     `json:"userNamespaces"`
	DefaultRuntime   string   `json:"defaultRuntime"`
}

// CohortRuntime is the registration of the sandbox runtime. Paths in Args are replaced by
// the digests of what they name.
type CohortRuntime struct {
	BinaryDigest string   `json:"binaryDigest"`
	Args         []string `json:"args"`
}

// CohortSandbox is what the sandbox binary says of itself.
type CohortSandbox struct {
	Version  string `json:"version"`
	Platform string `json:"platform"`
}

// CohortQuota is how workspaces are bounded.
type CohortQuota struct {
	Backend    string `json:"backend"`    // loop, prjquota
	Filesystem string `json:"filesystem"` // ext4, xfs
}

// CohortID returns "sha256:" and the digest of d's RFC 8785 form.
func CohortID(d CohortDescriptor) (string, error) {
	b, err := strictjson.Canonical(d)
	if err != nil {
		return "", fmt.Errorf("cohort id: %w", err)
	}
	return Digest(b), nil
}
