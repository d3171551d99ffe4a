// SPDX-License-Identifier: Apache-2.0

package im

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

const (
	codeUnqualified = "REMOTE_WORKER_UNQUALIFIED"
	codeInvalid     = "REMOTE_WORKER_REQUEST_INVALID"
)

// createPath ends the path of the engine call that makes a container.
const createPath = "/containers/create"

// IM01 moves a name of the pinned image to another image and asks for that one in every way.
var IM01 = conformance.Case{
	ID: "IM-01", Revision: 2, Title: "Mutated local tag",
	Requirement: "A container is made from the pinned digest or not at all; a name never decides.",
	Threat:      "Whoever can tag an image on the host decides what runs.",
	Attack:      "The pinned image gets one name more, which another image takes over after a create; then a create asks for it by digest, one asks by name, one asks for the pinned digest.",
	Witness:     "Names that point at the other image when the worker is asked (at least 1), and creates that were asked for (3).",
	Oracle:      "The engine calls on the tape: neither the other digest nor the name makes the engine create a container, and the pinned digest makes it create one of that image; the image id of the container that the engine reports.",
	Precedent:   "tidebreak#1188; drydock#961",
	Tier:        conformance.Smoke, Timeout: 60 * time.Second,
	Exclusive: true, // the tape is read for creates of one image, and images are the whole engine's
	Features:  []conformance.Feature{conformance.FeatureProtocol, conformance.FeatureAdmission},
	Needs:     []conformance.Part{conformance.PartEngine, conformance.PartTape, conformance.PartWire, conformance.PartWorkspacePath},
	Oracles:   []conformance.Oracle{conformance.OracleTape, conformance.OracleEngine, conformance.OracleWire},
	Kills:     []conformance.Kill{{Mutant: "m23", Reason: "other-image-started"}, {Mutant: "m45", Reason: "unpinned-image-created"}},
	Run:       runIM01,
}

func runIM01(ctx context.Context, t *conformance.T) error {
	// Arrange: the other image is the pinned one with one label more.
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	warm := t.Sandbox(ctx, target.Spec{})
	pinned, err := attack.Container(ctx, t, warm)
	if err != nil {
		return err
	}
	parent, err := attack.Parent(t)
	if err != nil {
		return err
	}
	plant, err := engine.Make(ctx, oracle.Plant{Image: pinned.ImageID, Argv: []string{"/plant"}, CgroupParent: parent})
	if err != nil {
		return err
	}
	other, err := engine.Commit(ctx, plant, t.Canary("image label"))
	if err != nil {
		return err
	}
	// A name of the suite's own: one that somebody has would be lost with a killed run. The worker
	// sees it at the pinned image once, so that one that goes by names knows it.
	name := "hallmark-im01:" + strings.ToLower(rand.Text())
	own, err := engine.Name(ctx, name, pinned.ImageID)
	if err != nil {
		return err
	}
	t.Sandbox(ctx, target.Spec{})
	t.NeedWitness("names-moved", 1)
	t.NeedWitness("creates-asked", 3)
	if err := own.Move(ctx, other); err != nil {
		return err
	}
	if moved, err := engine.ImageNames(ctx, other); err != nil {
		return err
	} else {
		t.Witness("names-moved", int64(len(moved)))
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}

	// Attack 1: the other image by its own digest.
	_, err = t.TrySandbox(ctx, target.Spec{Image: other})
	t.Witness("creates-asked", 1)
	calls, _, terr := t.Target().Observer.Tape(mark)
	if terr != nil {
		return terr
	}
	if err != nil && target.CodeOf(err) == "" {
		return err
	}
	if made := creates(calls); len(made) > 0 || err == nil {
		t.Fail("unpinned-image-created", "the engine was asked for %d containers of an image that is not pinned; the create ended in %v", len(made), err)
	} else if target.CodeOf(err) != codeUnqualified {
		t.Fail("code-differs", "the other image by digest was answered with %v", err)
	}

	// Attack 2: by name.
	spec := t.Spec(target.Spec{})
	t.AdoptWorkspace(spec.WorkspaceID)
	body, err := t.Target().Wire.CreateBody(ctx, spec)
	if err != nil {
		return err
	}
	asked := bytes.Replace(body, []byte(`"`+spec.Image+`"`), []byte(`"`+name+`"`), 1)
	if bytes.Equal(asked, body) {
		return fmt.Errorf("the create request does not hold the image %q", spec.Image)
	}
	if _, mark, err = t.Target().Observer.Tape(mark); err != nil {
		return err
	}
	res, err := t.Target().Wire.Raw(ctx, target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: spec.WorkspaceID, Body: asked})
	if err != nil {
		return err
	}
	t.Witness("creates-asked", 1)
	if calls, _, terr = t.Target().Observer.Tape(mark); terr != nil {
		return terr
	}
	if made := creates(calls); len(made) > 0 {
		t.Fail("name-reached-engine", "a create by name made the engine create a container of %v", made)
	}
	if res.Status < 300 {
		t.Fail("name-accepted", "a create by name was answered with status %d", res.Status)
		if err := attack.DisposeRaw(ctx, t, spec.WorkspaceID, res.Body); err != nil {
			return err
		}
	} else if res.Code != codeInvalid {
		t.Fail("code-differs", "a create by name was answered with %q", res.Code)
	}

	// Attack 3: the pinned digest, one of whose names now points elsewhere.
	if _, mark, err = t.Target().Observer.Tape(0); err != nil {
		return err
	}
	sb, err := t.TrySandbox(ctx, target.Spec{})
	t.Witness("creates-asked", 1)
	if calls, _, terr = t.Target().Observer.Tape(mark); terr != nil {
		return terr
	}
	for _, c := range creates(calls) {
		t.Observe("created-from", c)
		if c != pinned.ImageID {
			t.Fail("other-image-started", "the engine was asked for a container of %s instead of %s", c, pinned.ImageID)
		}
	}
	if err != nil && target.CodeOf(err) == "" {
		return err
	}
	if err != nil {
		t.Fail("pinned-image-refused", "the pinned digest was answered with %v", err)
		return nil
	}
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	if c.ImageID != pinned.ImageID {
		t.Fail("other-image-started", "the container's image is %s instead of %s", c.ImageID, pinned.ImageID)
	}
	return nil
}

// creates returns the image that each recorded create asked for.
func creates(calls []target.TapeCall) []string {
	var images []string
	for _, c := range calls {
		if c.Method != "POST" || !strings.HasSuffix(c.Path, createPath) {
			continue
		}
		var body struct{ Image string }
		if err := json.Unmarshal(c.Body, &body); err != nil {
			images = append(images, fmt.Sprintf("unreadable: %v", err))
			continue
		}
		images = append(images, body.Image)
	}
	return images
}
