// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Crowd are commands that run in one sandbox at the same time, until they are let go. Each beats in a file
// of its own, and one counts as running when the host has seen it beat.
type Crowd struct {
	Running []string  // the heartbeat files of those that run, on the host
	Refused []Outcome // of those that the runtime did not start, in order
	Late    int       // that had neither begun to beat nor been answered within CrowdPatience

	sb    target.Sandbox
	stop  string
	ended []chan Outcome
}

// CrowdPatience is how long a command may take to be seen running, or to be refused.
const CrowdPatience = 15 * time.Second

// crowdLife ends a crowd that nobody lets go.
const crowdLife = 90 * time.Second

// Gather starts one command after the other, until most run or beyond were refused. name begins the names
// of their files in the workspace, which lies at workspace on the host. The crowd must be let go.
func Gather(ctx context.Context, sb target.Sandbox, program, workspace, name string, most, beyond int) (*Crowd, error) {
	c := &Crowd{sb: sb, stop: name + ".stop"}
	for i := 0; len(c.Running) < most && len(c.Refused) < beyond && c.Late == 0; i++ {
		file := fmt.Sprintf("%s-%d", name, i)
		beat := filepath.Join(workspace, file)
		ended := make(chan Outcome, 1)
		go func() {
			ended <- Run(ctx, sb, target.Command{Timeout: crowdLife,
				Argv: Command(program, "steady", "-file", file, "-until", c.stop, "-life", crowdLife.String())})
		}()
		var o *Outcome
		running, err := Eventually(ctx, CrowdPatience, func() (bool, error) {
			select {
			case end := <-ended:
				o = &end
				return true, nil
			default:
			}
			size, err := oracle.FileSize(beat)
			return size > 0, err
		})
		switch {
		case err != nil:
			return c, err
		case o != nil && o.Err != nil:
			if err := o.Trouble(); err != nil {
				return c, err
			}
			c.Refused = append(c.Refused, *o)
		case o != nil:
			return c, fmt.Errorf("command %d of a crowd ended before it was let go, with exit code %d %s: %.300s", i, o.Result.ExitCode, o.Result.Signal, o.Result.Stderr)
		default:
			c.ended = append(c.ended, ended)
			if !running {
				c.Late++
				continue
			}
			c.Running = append(c.Running, beat)
		}
	}
	return c, nil
}

// Let lets the crowd go and returns how each of them ended, late ones too.
func (c *Crowd) Let(ctx context.Context) (ends []Outcome, err error) {
	if err := c.sb.Files().Write(ctx, c.stop, nil); err != nil {
		return nil, fmt.Errorf("let a crowd go: %w", err)
	}
	for _, ended := range c.ended {
		select {
		case o := <-ended:
			ends = append(ends, o)
			err = errors.Join(err, o.Trouble())
		case <-ctx.Done():
			return ends, ctx.Err()
		}
	}
	return ends, err
}
