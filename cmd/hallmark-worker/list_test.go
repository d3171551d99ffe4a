// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// listAll selects the containers of one worker, dead ones included.
func listAll(workerID string) container.ListOptions {
	return container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", engine.LabelWorker+"="+workerID))}
}
