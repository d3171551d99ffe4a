// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package capability

import (
	"errors"
	"time"
)

// A worker runs on Linux only; clients elsewhere mint with wall time.
func bootTime() (time.Duration, error) { return 0, errors.New("no CLOCK_BOOTTIME on this system") }
