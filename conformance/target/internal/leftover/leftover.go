// SPDX-License-Identifier: Apache-2.0

// Package leftover records what a driver owns on an engine, and removes what a killed run left.
//
// A record is on disk before anything that it names exists, and goes last. Owned is what carries
// the record's random label, the record's own cgroup and the record's folder: nothing else is ever
// removed, and nothing of a process that lives.
package leftover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	docker "github.com/docker/docker/client"

	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/cgroup"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// File is the record's name in the folder that it speaks for.
const File = "owner.json"

// Record says whose a folder is, and what else belongs to it.
type Record struct {
	Format string  `json:"format"` // set by Write
	Owner  Process `json:"owner"`
	Engine string  `json:"engine"` // socket
	Label  string  `json:"label"`  // name=value of every container, random for each run
	Cgroup string  `json:"cgroup"` // parent of every container, nobody else's; "" when there is none
}

// Write puts r into dir, atomically.
func (r Record) Write(dir string) error {
	r.Format = format
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode owner record: %w", err)
	}
	tmp := filepath.Join(dir, File+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write owner record: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, File)); err != nil {
		return fmt.Errorf("write owner record: %w", err)
	}
	return nil
}

// removalBound is how long the last cgroup may take to empty.
const removalBound = 10 * time.Second

// Remove removes containers, cgroup and the content of dir, the record last, and names the
// containers that were there. cli is nil when the engine is gone, and its containers with it.
func (r Record) Remove(ctx context.Context, cli *docker.Client, dir string) (left []string, err error) {
	var errs []error
	if cli != nil && r.Label != "" {
		left, err = RemoveOwned(ctx, cli, r.Label, r.Cgroup)
		errs = append(errs, err)
	}
	if r.Cgroup != "" {
		bounded, cancel := context.WithTimeout(ctx, removalBound)
		errs = append(errs, cgroup.Remove(bounded, r.Cgroup))
		cancel()
	}
	errs = append(errs, target.ClearTree(dir, File))
	if err := errors.Join(errs...); err != nil {
		return left, err // the record stays, for the next sweep
	}
	if err := os.Remove(filepath.Join(dir, File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return left, fmt.Errorf("remove owner record: %w", err)
	}
	return left, nil
}

// RemoveContainers removes every container with the label, running or not, and names them.
func RemoveContainers(ctx context.Context, cli *docker.Client, label string) (left []string, err error) {
	rows, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, c := range rows {
		left = append(left, "container "+c.ID[:min(12, len(c.ID))])
		errs = append(errs, RemoveContainer(ctx, cli, c.ID))
	}
	return left, errors.Join(errs...)
}

// RemoveOwned removes the containers with the label, which is name=value, and what cases have
// planted beside them: containers whose cgroup parent is parent, running or not, and images made from those.
// "" is no parent of anybody's own. It says what was there.
func RemoveOwned(ctx context.Context, cli *docker.Client, label, parent string) (left []string, err error) {
	name, value, _ := strings.Cut(label, "=")
	rows, err := cli.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, c := range rows {
		if got, ok := c.Labels[name]; !ok || got != value {
			if parent == "" {
				continue
			}
			in, err := cli.ContainerInspect(ctx, c.ID)
			if errdefs.IsNotFound(err) {
				continue
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("inspect a container: %w", err))
				continue
			}
			if in.ContainerJSONBase == nil || in.HostConfig == nil || in.HostConfig.CgroupParent != parent {
				continue
			}
		}
		left = append(left, "container "+c.ID[:min(12, len(c.ID))])
		errs = append(errs, RemoveContainer(ctx, cli, c.ID))
	}
	images, err := removeImages(ctx, cli, parent)
	return append(left, images...), errors.Join(append(errs, err)...)
}

// removeImages removes what a case has made from a container below the cgroup parent, under
// whatever names.
func removeImages(ctx context.Context, cli *docker.Client, parent string) (left []string, err error) {
	if parent == "" {
		return nil, nil
	}
	rows, err := cli.ImageList(ctx, image.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", oracle.PlantParent+"="+parent))})
	if err != nil {
		return nil, fmt.Errorf("list planted images: %w", err)
	}
	var errs []error
	for _, m := range rows {
		left = append(left, "image "+m.ID)
		if _, err := cli.ImageRemove(ctx, m.ID, image.RemoveOptions{Force: true}); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove a planted image: %w", err))
		}
	}
	return left, errors.Join(errs...)
}

// RemoveContainer removes one container with its anonymous volumes and returns when the engine does
// not know it any more. One that is not there is success.
func RemoveContainer(ctx context.Context, cli *docker.Client, id string) error {
	// A conflict is a removal that somebody else has begun: it is waited for like our own.
	err := cli.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		return fmt.Errorf("remove container: %w", err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(removalBound); ; {
		_, err := cli.ContainerInspect(ctx, id)
		switch {
		case errdefs.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("inspect removed container: %w", err)
		case time.Now().After(deadline):
			return fmt.Errorf("remove container: the engine still has it after %s", removalBound)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove container: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Sweep removes what killed runs left in the folders of their processes: see [target.SweepRuns].
// What is not a record of this driver's to the letter is somebody else's, and not touched.
func Sweep(ctx context.Context, parent string) error {
	return target.SweepRuns(parent, File, func(d target.Dead) error {
		r, err := parse(d.Record)
		if err != nil || r == nil || r.Owner.Alive() {
			return err
		}
		return r.sweep(ctx, d.Dir)
	})
}

// format begins every record: a file of another program's is not taken for one.
const format = "hallmark-owner/1"

// LabelRun is the name of the label by which a run's containers are known. Its value is random.
const LabelRun = "hallmark-docker.run"

var labelForm = regexp.MustCompile(`^` + regexp.QuoteMeta(LabelRun) + `=([0-9a-f]{32})$`)

// CgroupName is the last name of the cgroup parent of a run with this label value.
func CgroupName(id string) string { return "hallmark-" + id[:12] }

// parse returns nil for what does not say that it is a record. What says so and is broken is an error.
func parse(b []byte) (*Record, error) {
	if !bytes.Contains(b, []byte(format)) {
		return nil, nil
	}
	var r Record
	if err := strictjson.Unmarshal(b, &r, strictjson.Default); err != nil {
		return nil, fmt.Errorf("read owner record: %w", err)
	}
	id := labelForm.FindStringSubmatch(r.Label)
	if r.Format != format || r.Owner.Pid <= 0 || r.Owner.Start == "" || id == nil || !filepath.IsAbs(r.Engine) ||
		r.Cgroup != "" && (filepath.Clean("/"+r.Cgroup) != "/"+strings.TrimPrefix(r.Cgroup, "/") || filepath.Base(r.Cgroup) != CgroupName(id[1])) {
		return nil, errors.New("read owner record: it says what no record of this driver's does")
	}
	return &r, nil
}

func (r Record) sweep(ctx context.Context, dir string) error {
	var cli *docker.Client
	if _, err := os.Stat(r.Engine); err == nil {
		c, err := docker.NewClientWithOpts(docker.WithHost("unix://"+r.Engine), docker.WithAPIVersionNegotiation())
		if err != nil {
			return fmt.Errorf("engine client: %w", err)
		}
		defer c.Close()
		// An engine that does not answer may come back with its containers: its record waits for it.
		// Without a socket it is gone, as a lab that was taken down.
		_, err = c.Ping(ctx)
		switch {
		case err == nil:
			cli = c
		case docker.IsErrConnectionFailed(err):
			return nil
		default:
			return fmt.Errorf("ask engine: %w", err)
		}
	}
	_, err := r.Remove(ctx, cli, dir)
	return err
}
