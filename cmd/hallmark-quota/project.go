// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"
	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
)

func runProject(ctx context.Context, verb, dir string, rest []string, n []int64) (any, error) {
	if verb == "state" {
		return answer(project.Ask(dir))
	}
	store, err := project.Open(dir)
	if err != nil {
		return nil, err
	}
	switch verb {
	case "apply":
		if n[2] > math.MaxUint32 || n[3] > math.MaxUint32 {
			return nil, fmt.Errorf("%w: project ids have 32 bits", exitcode.ErrUsage)
		}
		ids := project.Range{First: uint32(n[2]), Last: uint32(n[3])}
		return answer(store.Apply(ctx, rest[0], n[0], n[1], ids, project.Reserve{Bytes: n[4], Inodes: n[5]}))
	case "verify":
		return answer(store.Verify(ctx, rest[0]))
	case "usage":
		return answer(store.Usage(ctx, rest[0]))
	case "repair":
		return answer(store.Repair(ctx, rest[0]))
	case "release":
		return answer(store.Release(ctx, rest[0], time.Duration(min(n[0], limit.Milliseconds()))*time.Millisecond))
	default:
		return store.List()
	}
}
