// SPDX-License-Identifier: Apache-2.0

package arming

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// EngineLog plants a container whose log has no bound and which prints a report, and one without a log
// that prints the same: both must be heard, and only the first may be found on the engine's disk.
func EngineLog(ctx context.Context, t *conformance.T) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	parent, err := attack.Parent(t)
	if err != nil {
		return err
	}
	sb := t.Sandbox(ctx, target.Spec{}) // its workspace holds the program that the plants run
	t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	for _, driver := range []string{"json-file", "none"} {
		id, err := engine.Make(ctx, oracle.Plant{
			Image: t.Image(), Log: driver, CgroupParent: parent, Argv: attack.Command("/plant", "noop"), Binary: filepath.Join(c.Workspace, conformance.TenantProgram),
		})
		if err != nil {
			return err
		}
		l, err := engine.Log(ctx, id)
		if err != nil {
			return err
		}
		before, err := engine.ContainerFiles(ctx, id)
		if err != nil {
			return err
		}
		soFar, stop, err := engine.Listen(ctx, id)
		if err != nil {
			return err
		}
		defer stop()
		if err := engine.Start(ctx, id); err != nil {
			return err
		}
		if _, err := engine.Wait(ctx, id); err != nil {
			return err
		}
		heard, err := attack.Eventually(ctx, 5*time.Second, func() (bool, error) { return soFar().Lines > 0, nil })
		if err != nil {
			return err
		}
		stop()
		after, err := engine.ContainerFiles(ctx, id)
		if err != nil {
			return err
		}
		name := id + "-json.log"
		switch kept := after[name] > before[name]; {
		case !heard:
			t.Fail("planted-missed", "nothing was heard of a container that prints a line, log driver %s", driver)
		case driver == "json-file" && (l.Bound != oracle.Unlimited || !kept || oracle.Grown(before, after) < soFar().Bytes):
			t.Fail("planted-missed", "a log of %d bytes is not seen to grow: %v, then %v; bound %d", soFar().Bytes, before, after, l.Bound)
		case driver == "none" && (l.Bound != 0 || kept):
			t.Fail("false-positive", "a container without a log is seen with one: %v, bound %d", after, l.Bound)
		}
		t.Witness("lines", soFar().Lines)
		if err := engine.Remove(ctx, id); err != nil {
			return err
		}
	}
	t.NeedWitness("lines", 2)
	return nil
}
