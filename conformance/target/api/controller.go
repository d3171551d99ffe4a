// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/engineexec"
)

// controller disturbs the worker and its sandboxes.
type controller struct{ *driver }

// Foothold is an engine exec as root, past the worker. Its end by ctx leaves the program to the
// sandbox's own end: the engine has no way to kill an exec.
func (c controller) Foothold(ctx context.Context, sandboxID string, argv []string, stdin []byte) (target.Result, error) {
	if c.engine == nil {
		return target.Result{}, target.ErrUnavailable
	}
	ct, err := observer(c).Container(ctx, sandboxID)
	if err != nil {
		return target.Result{}, err
	}
	return engineexec.Foothold(ctx, c.engine, ct.ID, argv, stdin)
}

func (c controller) Kill(context.Context) error {
	w := c.worker.Load()
	if w == nil {
		return target.ErrUnavailable
	}
	w.kill()
	return nil
}

func (c controller) Terminate(ctx context.Context, again func()) (int, error) {
	w := c.worker.Load()
	if w == nil {
		return 0, target.ErrUnavailable
	}
	if !w.alive() {
		return 0, errors.New("the worker is not running")
	}
	return w.signalled(ctx, again)
}

func (c controller) Start(ctx context.Context) error {
	w := c.worker.Load()
	if w == nil {
		return target.ErrUnavailable
	}
	if w.alive() {
		return errors.New("the worker is running")
	}
	err := c.start(ctx)
	if errors.Is(err, errEnded) || errors.Is(err, errSilent) {
		return &target.Error{Code: "worker-not-started", Kind: target.KindDied, Cause: err}
	}
	return err
}

func (c controller) Inject(rule target.TapeRule) error {
	if c.tape == nil {
		return target.ErrUnavailable
	}
	return c.tape.Inject(rule)
}

func (c controller) Calm() error {
	if c.tape == nil {
		return target.ErrUnavailable
	}
	c.tape.Calm()
	return nil
}
