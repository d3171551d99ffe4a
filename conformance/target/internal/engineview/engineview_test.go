// SPDX-License-Identifier: Apache-2.0

package engineview

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// fake lists what it is told, look by look, and knows the ids in known.
type fake struct {
	lists [][]container.Summary
	known map[string]bool
	looks int
}

func (f *fake) ContainerList(context.Context, container.ListOptions) ([]container.Summary, error) {
	rows := f.lists[min(f.looks, len(f.lists)-1)]
	f.looks++
	return rows, nil
}

func (f *fake) ContainerInspect(_ context.Context, id string) (container.InspectResponse, error) {
	if !f.known[id] {
		return container.InspectResponse{}, errdefs.ErrNotFound
	}
	return container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{ID: id}}, nil
}

func TestOnlyWhatListAndInspectAgreeOnIsAnAnswer(t *testing.T) {
	old, live := container.Summary{ID: "old", State: "exited"}, container.Summary{ID: "live", State: container.StateRunning}
	for name, tt := range map[string]struct {
		fake *fake
		id   string
		err  error
	}{
		"none":               {fake: &fake{lists: [][]container.Summary{{}}}, err: target.ErrNoContainer},
		"the running one":    {fake: &fake{lists: [][]container.Summary{{old, live}}, known: map[string]bool{"old": true, "live": true}}, id: "live"},
		"gone meanwhile":     {fake: &fake{lists: [][]container.Summary{{live}, {live}, {}}}, err: target.ErrNoContainer},
		"replaced meanwhile": {fake: &fake{lists: [][]container.Summary{{old}, {live}}, known: map[string]bool{"live": true}}, id: "live"},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := Inspect(t.Context(), tt.fake, filters.Args{})
			if !errors.Is(err, tt.err) || tt.err == nil && (err != nil || in.ID != tt.id) {
				t.Errorf("%+v, %v", in.ContainerJSONBase, err)
			}
		})
	}
}
