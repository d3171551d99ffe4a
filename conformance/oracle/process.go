// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hallmark-sandbox/hallmark/conformance/internal/proctable"
)

// Process is one row of the host's process table.
type Process = proctable.Process

// Processes reads /proc once. What ends during the read is left out.
func Processes() (map[int]Process, error) { return proctable.Processes() }

// ReadProcess reads one row.
func ReadProcess(pid int) (Process, error) { return proctable.ReadProcess(pid) }

// ExeDigest is "sha256:..." over the file that a process executes, read through the kernel's link,
// so that a path replaced on disk does not matter.
func ExeDigest(pid int) (string, error) { return FileDigest(fmt.Sprintf("/proc/%d/exe", pid)) }

// FileDigest is "sha256:..." over a file's content.
func FileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// Credentials are the lines of /proc/<pid>/status that say what a host process may do, by name and
// with single blanks between their values, for example "CapEff" and "NoNewPrivs".
func Credentials(pid int) (map[string]string, error) {
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	lines := map[string]string{}
	for line := range strings.SplitSeq(string(body), "\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs":
			lines[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	if lines["Uid"] == "" || lines["CapEff"] == "" {
		return nil, fmt.Errorf("status of %d has no credentials", pid)
	}
	return lines, nil
}

// Namespaces lists the namespaces of the given host processes as "type:[inode]". What ended is
// left out.
func Namespaces(pids []int) map[string]bool {
	set := map[string]bool{}
	for _, pid := range pids {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", pid))
		if err != nil {
			continue
		}
		for _, link := range links {
			if id, err := os.Readlink(link); err == nil {
				set[id] = true
			}
		}
	}
	return set
}
