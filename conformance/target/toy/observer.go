// SPDX-License-Identifier: Apache-2.0

package toy

import (
	"context"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// observer offers the host path of a workspace and nothing else.
type observer struct{ *box }

func (o observer) Container(_ context.Context, id string) (target.Container, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.live[id]
	if s == nil {
		return target.Container{}, target.ErrNoContainer
	}
	return target.Container{ID: s.id, Name: "toy-" + s.id, Workspace: s.dir}, nil
}

func (observer) EngineSocket() (string, error)                { return "", target.ErrUnavailable }
func (observer) CgroupParent() (string, error)                { return "", target.ErrUnavailable }
func (observer) WorkerPid() (int, error)                      { return 0, target.ErrUnavailable }
func (observer) NetworkNamespace() (string, error)            { return "", target.ErrUnavailable }
func (observer) LabNetwork() (string, error)                  { return "", target.ErrUnavailable }
func (observer) SandboxBinary() (string, string, error)       { return "", "", target.ErrUnavailable }
func (observer) Logs() ([]string, error)                      { return nil, target.ErrUnavailable }
func (observer) Tape(int64) ([]target.TapeCall, int64, error) { return nil, 0, target.ErrUnavailable }
