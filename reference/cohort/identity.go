// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// machineIDs are where a host's machine-id(5) lies. The first that exists counts.
var machineIDs = []string{"/etc/machine-id", "/var/lib/dbus/machine-id"}

// hostPurpose keeps the digest from being of use for anything else: machine-id(5) is not to be published.
const hostPurpose = "hallmark host v1"

// HostID names this installation of an operating system: "sha256:" and the HMAC-SHA256 of a constant under its
// machine-id(5). It is no part of a cohort. "" without an error is a host that has none.
func HostID() (string, error) { return hostID(machineIDs) }

func hostID(paths []string) (string, error) {
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("machine id: %w", err)
		}
		id, err := hex.DecodeString(string(bytes.TrimSpace(text)))
		if err != nil || len(id) != 16 || bytes.Equal(id, make([]byte, 16)) {
			return "", nil // not set up yet; what an older file says may be what all copies of an image say
		}
		mac := hmac.New(sha256.New, id)
		mac.Write([]byte(hostPurpose))
		return "sha256:" + hex.EncodeToString(mac.Sum(nil)), nil
	}
	return "", nil
}
