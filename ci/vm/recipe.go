// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// recipe is everything that decides what an image holds but for the versions of the packages, which are those that
// the distribution has when the image is built, and stand in its record.
type recipe struct {
	Layout   int      `json:"layout"` // rises when build.go makes another tree of the same packages
	Suite    string   `json:"suite"`
	Arch     string   `json:"arch"`
	Packages []string `json:"packages"` // with what they depend on
	Kernel   string   `json:"kernel"`   // meta package, which names the versioned one
	DiskSize int64    `json:"diskSize"` // of the root, in bytes
}

// debian13 is the one guest. The engine needs iptables even where it is told to make no rule: it looks for it.
var debian13 = recipe{
	Layout: 1, Suite: "trixie", Arch: "amd64",
	Packages: []string{
		"base-files", "base-passwd", "bash", "busybox-static", "coreutils", "dash", "docker.io", "e2fsprogs", "findutils", "grep", "iproute2",
		"iptables", "kmod", "libc-bin", "mount", "procps", "quota", "sed", "util-linux", "xfsprogs",
	},
	Kernel: "linux-image-cloud-amd64", DiskSize: 6 << 30,
}

// key names an image of the recipe with an init program: 32 hex digits.
func (r recipe) key(initDigest string) string { return short(r, initDigest) }

// packagesKey names the package files of the recipe, which outlive a change of our own part.
func (r recipe) packagesKey() string { return short(r.Suite, r.Arch, r.Packages, r.Kernel) }

func short(v ...any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and lists of them
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
