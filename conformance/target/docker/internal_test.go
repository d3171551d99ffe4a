// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	engine "github.com/docker/docker/client"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func TestEndsByTheEnginesState(t *testing.T) {
	s := &sandbox{}
	for _, tt := range []struct {
		name  string
		state container.State
		code  string
		kind  target.Kind
	}{
		{"killed for memory", container.State{ExitCode: 137, OOMKilled: true}, CodeOOM, target.KindOOM},
		{"ended otherwise for memory", container.State{ExitCode: 2, OOMKilled: true}, CodeOOM, target.KindOOM},
		{"by itself", container.State{ExitCode: 0}, CodeExpired, target.KindGone},
		{"by a fault", container.State{ExitCode: 139}, CodeDied, target.KindDied},
	} {
		err := s.endOf(t.Context(), &tt.state)
		if target.CodeOf(err) != tt.code || target.KindOf(err) != tt.kind {
			t.Errorf("%s: %v, kind %q", tt.name, err, target.KindOf(err))
		}
	}
}

func TestErrorsGetTheirCodes(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("step: %w", err) }
	for _, tt := range []struct {
		name string
		err  error
		code string
		kind target.Kind
	}{
		{"engine: not reached", engineError(wrap(engine.ErrorConnectionFailed("unix:///x"))), CodeEngineUnreachable, ""},
		{"engine: its own words", engineError(wrap(errdefs.ErrInternal)), CodeEngineFailed, ""},
		{"engine: the caller's end", engineError(wrap(context.Canceled)), "", ""},
		{"engine: named already", engineError(wrap(refusal(CodeGone, target.KindGone, nil))), CodeGone, target.KindGone},
		{"create: unknown", createError(wrap(errdefs.ErrNotFound)), CodeImageUnknown, ""},
		{"create: invalid", createError(wrap(errdefs.ErrInvalidArgument)), CodeUnsupported, target.KindUnsupported},
		{"path: absent", pathError(wrap(fs.ErrNotExist)), CodeNotFound, target.KindNotFound},
		{"path: full", pathError(wrap(unix.ENOSPC)), CodeNoSpace, target.KindNoSpace},
		{"path: quota", pathError(wrap(unix.EDQUOT)), CodeNoSpace, target.KindNoSpace},
		{"path: a loop", pathError(wrap(unix.ELOOP)), CodePathUnsafe, target.KindPathUnsafe},
		{"path: too long", pathError(wrap(unix.ENAMETOOLONG)), CodePathUnsafe, target.KindPathUnsafe},
		{"path: a folder", pathError(wrap(unix.EISDIR)), CodeNotRegular, target.KindPathUnsafe},
		{"path: the host's fault", pathError(wrap(unix.EIO)), "", ""},
		{"root: out of it", escaped(&fs.PathError{Op: "openat", Path: "d", Err: errors.New("path escapes from parent")}), CodePathUnsafe, target.KindPathUnsafe},
		{"root: an errno", escaped(&fs.PathError{Op: "openat", Path: "d", Err: unix.EIO}), "", ""},
	} {
		if target.CodeOf(tt.err) != tt.code || target.KindOf(tt.err) != tt.kind || tt.err == nil {
			t.Errorf("%s: code %q, kind %q: %v", tt.name, target.CodeOf(tt.err), target.KindOf(tt.err), tt.err)
		}
	}
	if engineError(nil) != nil || pathError(nil) != nil || escaped(nil) != nil {
		t.Error("success became an error")
	}
}

// The targets of a run's processes differ in what is random, and keep the same documents all the same.
func TestDocumentsAreThoseOfEveryProcess(t *testing.T) {
	document := func(id, parent string) string {
		d := &driver{cfg: Config{Socket: "/s", Runtime: "runc", User: "65532:65532", Hold: Hold{Binary: "/hold", Argv: []string{"hold", secondsArg}}}, id: id, parent: parent}
		docs, err := d.documents()
		if err != nil {
			t.Fatal(err)
		}
		return string(docs["launch-profile.json"]) + string(docs["worker-config.json"])
	}
	if one, other := document("a", "/lab/a"), document("b", "/lab/b"); one != other {
		t.Errorf("%s\nand\n%s", one, other)
	}
	if one, other := document("a", ""), document("a", "/lab/a"); one == other {
		t.Error("with and without a cgroup parent the documents are the same")
	}
}
