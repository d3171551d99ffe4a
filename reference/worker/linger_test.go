// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"io"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// A body that is refused while it is being sent: the caller reads the code, whatever is left to send.
func TestRefusalInMidBodyIsRead(t *testing.T) {
	r := newRig(t, tweak{})
	r.fake.onWrite = func(body io.Reader) error {
		if _, err := io.CopyN(io.Discard, body, 1<<20); err != nil {
			return err
		}
		return workspace.ErrQuota
	}
	for _, size := range []int{1<<20 + 1<<10, 2 << 20, 8 << 20} {
		body := bytes.Repeat([]byte("x"), size)
		for range 20 {
			_, err := r.client.Write(t.Context(), "ws", "sb", "f", body, client.WriteOptions{})
			if got := codeOf(err); got != api.QuotaExceeded {
				t.Fatalf("%d bytes: got %v, want %s", size, err, api.QuotaExceeded)
			}
		}
	}
}
