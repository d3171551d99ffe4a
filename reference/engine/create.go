// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/docker/docker/api/types/container"
)

// Create makes the container of s and compares the engine's inspect output with the
// required launch properties. An error that matches ErrNotCreated means that no container
// of that name exists because of this call or can still appear; after any other error one
// may, and the caller removes it by name.
func (e *Engine) Create(ctx context.Context, s Spec) (Created, error) {
	if err := s.validate(); err != nil {
		return Created{}, errors.Join(ErrNotCreated, err)
	}
	ctx, cancel := context.WithTimeout(ctx, changeDeadline)
	defer cancel()
	req := e.build(s)
	resp, err := e.cli.ContainerCreate(ctx, req.config, req.host, req.network, nil, s.Name)
	switch {
	case err != nil && (refusal(err, s.Name) || neverSent(err)):
		return Created{}, fmt.Errorf("create container: %w", errors.Join(ErrNotCreated, err))
	case err != nil:
		return Created{}, fmt.Errorf("create container: %w", err)
	}
	for _, w := range resp.Warnings {
		e.cfg.Log.WarnContext(ctx, "engine warning", "sandbox", s.SandboxID, "warning", w)
	}
	seen, raw, err := e.inspect(ctx, resp.ID)
	if err != nil {
		return Created{ID: resp.ID}, err
	}
	if err := CheckLaunch(seen, s, e.cfg); err != nil {
		return Created{ID: resp.ID}, fmt.Errorf("%w: %w", ErrLaunch, err)
	}
	profile, err := Normalise(raw, s, e.cfg)
	if err != nil {
		return Created{ID: resp.ID}, fmt.Errorf("%w: %w", ErrLaunch, err)
	}
	return Created{ID: resp.ID, Profile: profile, ProfileDigest: digestOf(profile)}, nil
}

// Start starts the container and returns the host pid of the sandbox.
func (e *Engine) Start(ctx context.Context, id string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, changeDeadline)
	defer cancel()
	if err := e.cli.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return 0, fmt.Errorf("start container: %w", err)
	}
	return e.pid(ctx, id)
}

func (e *Engine) pid(ctx context.Context, id string) (int, error) {
	got, _, err := e.inspect(ctx, id)
	if err != nil {
		return 0, err
	}
	if got.State == nil || !got.State.Running || got.State.Pid <= 0 {
		return 0, ErrNotRunning
	}
	return got.State.Pid, nil
}

func (e *Engine) inspect(ctx context.Context, id string) (container.InspectResponse, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
	defer cancel()
	got, raw, err := e.cli.ContainerInspectWithRaw(ctx, id, false)
	if err != nil {
		return got, nil, fmt.Errorf("inspect container: %w", err)
	}
	return got, raw, nil
}

// neverSent reports whether the request cannot have reached the engine.
func neverSent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}
