// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxKeepers bounds how many processes an error names.
const maxKeepers = 3

// keepers names processes that have one of the loop devices mounted in a mount namespace other than
// this one: whoever copied the host's mounts while the workspace was there (unshare(1), a service with a
// file system of its own) keeps its device until it ends, see mount_namespaces(7). It is for the
// operator, who alone can end them. A process that ends meanwhile, or hides, is passed over.
func keepers(devices []string) string {
	numbers := map[string]bool{}
	for _, d := range devices {
		if b, err := os.ReadFile("/sys/block/" + d + "/dev"); err == nil {
			numbers[strings.TrimSpace(string(b))] = true
		}
	}
	own, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{own: true} // one of each namespace is enough
	var out []string
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		ns, err := os.Readlink(p + "/ns/mnt")
		if err != nil || seen[ns] || !mounts(p+"/mountinfo", numbers) {
			continue
		}
		seen[ns] = true
		name, _ := os.ReadFile(p + "/comm")
		out = append(out, fmt.Sprintf("%s (%.15q)", filepath.Base(p), strings.TrimSpace(string(name))))
		if len(out) == maxKeepers {
			break
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "; mounted elsewhere by process " + strings.Join(out, ", ")
}

// mounts says whether a mountinfo, proc_pid_mountinfo(5), has a device of the given numbers.
func mounts(path string, numbers map[string]bool) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if field := strings.Fields(s.Text()); len(field) > 2 && numbers[field[2]] {
			return true
		}
	}
	return false
}
