// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"time"

	"golang.org/x/sys/unix"
)

func bootTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}
