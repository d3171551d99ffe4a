// SPDX-License-Identifier: Apache-2.0

package project

import (
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// FuzzRecord: refuse, or have every member in range.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"workspaceId":"w","projectId":1048576,"bytes":1,"inodes":1,"state":"applied"}`))
	f.Add([]byte(`{"workspaceId":"w","projectId":0,"bytes":1,"inodes":1,"state":"applied"}`))
	f.Add([]byte(`{"workspaceId":"../w","projectId":1048576,"bytes":1,"inodes":1,"state":"intended"}`))
	f.Add([]byte(`{"workspaceId":"w","projectId":4294967295,"bytes":1,"inodes":1,"state":"releasing"}`))
	f.Add([]byte(`{"workspaceId":"w","projectId":1048576,"bytes":-1,"inodes":1,"state":""}`))
	f.Add([]byte(`{"workspaceId":"w","other":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := durable.Decode[record](b)
		if err != nil {
			return
		}
		if !durable.ValidID(r.WorkspaceID) || r.Bytes <= 0 || r.Inodes <= 0 || r.ProjectID < MinProjectID || r.ProjectID > MaxProjectID {
			t.Errorf("accepted %+v", r)
		}
	})
}
