// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/engineexec"
)

// controller offers the foothold only: there is no daemon of this target's to kill, and no tape.
type controller struct{ *driver }

// Foothold is an engine exec as root. Like the sandbox it has no capability.
func (c controller) Foothold(ctx context.Context, sandboxID string, argv []string, stdin []byte) (target.Result, error) {
	ct, err := observer(c).Container(ctx, sandboxID)
	if err != nil {
		return target.Result{}, err
	}
	return engineexec.Foothold(ctx, c.engine, ct.ID, argv, stdin)
}

func (controller) Kill(context.Context) error  { return target.ErrUnavailable }
func (controller) Start(context.Context) error { return target.ErrUnavailable }
func (controller) Inject(target.TapeRule) error {
	return target.ErrUnavailable
}
func (controller) Terminate(context.Context, func()) (int, error) {
	return 0, target.ErrUnavailable
}
func (controller) Calm() error { return target.ErrUnavailable }
