// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import "time"

// now is the wall clock: there is deliberately no flag that sets the time of a decision.
func now() time.Time { return time.Now().UTC() }
