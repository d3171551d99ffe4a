// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
	"github.com/hallmark-sandbox/hallmark/reference/supervisor"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// What packages say that must not import each other is the same: a file that the API writes, the root of an image
// and a tenant's process have one owner, and PID 1 is found where the engine has mounted it.
func TestPackagesAgreeOnTheSandbox(t *testing.T) {
	for name, uid := range map[string]int{"supervisor": supervisor.Tenant, "workspace": workspace.Tenant, "quota/loopimage": loopimage.Tenant, "quota/project": project.Tenant} {
		if uid != api.Tenant {
			t.Errorf("the tenant's uid is %d in %s and %d in api", uid, name, api.Tenant)
		}
	}
	if supervisor.Binary != engine.SupervisorTarget {
		t.Errorf("the supervisor is at %s, and mounted at %s", supervisor.Binary, engine.SupervisorTarget)
	}
}
