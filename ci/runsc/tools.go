// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package runsc pins the gVisor release that the lab builds runsc from, in a
// module of its own: nothing of it may reach the requirements of Hallmark.
package runsc

import _ "gvisor.dev/gvisor/runsc"
