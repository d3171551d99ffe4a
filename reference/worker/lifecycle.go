// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/session"
)

// Lifecycle gives a session manager the shape of the server's view.
func Lifecycle(m *session.Manager) Sessions { return lifecycle{m} }

type lifecycle struct{ *session.Manager }

func (l lifecycle) Start(ctx context.Context, ws, sb string, req api.ExecRequest, digest string) (Execution, error) {
	run, err := l.Manager.Start(ctx, ws, sb, req, digest)
	if err != nil {
		return nil, err // and no typed nil
	}
	return run, nil
}
