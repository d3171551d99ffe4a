// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// mountLoop leaves a mounted loop image on an immutable mount point below dir,
// as a killed worker does. The lab's sweep has to remove it.
func mountLoop(t *testing.T, dir string) {
	t.Helper()
	img, point := filepath.Join(dir, "ws.img"), filepath.Join(dir, "mnt")
	if err := os.Mkdir(point, 0o000); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"truncate", "-s", "8M", img}, {"mkfs.ext4", "-q", img}, {"chattr", "+i", point}, {"mount", "-o", "loop", img, point},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
}
