// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"io/fs"

	"github.com/containerd/errdefs"
	engine "github.com/docker/docker/client"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Codes of this driver. The set is closed. What the engine did or did not do has no kind.
const (
	CodeEngineUnreachable = "DOCKER_ENGINE_UNREACHABLE" // nobody answers on the socket
	CodeEngineFailed      = "DOCKER_ENGINE_FAILED"      // the engine refused, with its own words as the cause
	CodeImageUnknown      = "DOCKER_IMAGE_UNKNOWN"
	CodeUnsupported       = "DOCKER_UNSUPPORTED" // a bound or an option
	CodeOOM               = "DOCKER_SANDBOX_OOM" // the container ended, and the engine says OOMKilled
	CodeDied              = "DOCKER_SANDBOX_DIED"
	CodeExpired           = "DOCKER_SANDBOX_EXPIRED" // its PID 1 ended by itself at the hard time-out
	CodeGone              = "DOCKER_SANDBOX_GONE"    // disposed, or removed by somebody else
	CodeBusy              = "DOCKER_WORKSPACE_BUSY"  // purge of a workspace that a sandbox uses
	CodePathUnsafe        = "DOCKER_PATH_UNSAFE"
	CodeNotRegular        = "DOCKER_NOT_A_FILE"
	CodeNotFound          = "DOCKER_PATH_NOT_FOUND"
	CodeNoSpace           = "DOCKER_NO_SPACE"
)

func refusal(code string, kind target.Kind, cause error) error {
	return &target.Error{Code: code, Kind: kind, Cause: cause}
}

// engineError gives an error of the engine's client a code. The caller's own end is no refusal.
func engineError(err error) error {
	var typed *target.Error
	switch {
	case err == nil || errors.As(err, &typed):
		return err
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case engine.IsErrConnectionFailed(err):
		return refusal(CodeEngineUnreachable, "", err)
	}
	return refusal(CodeEngineFailed, "", err)
}

// createError is [engineError] for a create: there an unknown name is the image's, and what the
// engine calls invalid is a bound that it cannot honour.
func createError(err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return refusal(CodeImageUnknown, "", err)
	case errdefs.IsInvalidArgument(err):
		return refusal(CodeUnsupported, target.KindUnsupported, err)
	}
	return engineError(err)
}

// pathError gives an error of a workspace operation a code; what is neither the path's fault nor the
// disk's stays the host's.
func pathError(err error) error {
	var typed *target.Error
	switch {
	case err == nil || errors.As(err, &typed):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return refusal(CodeNotFound, target.KindNotFound, err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return refusal(CodeNoSpace, target.KindNoSpace, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL):
		return refusal(CodePathUnsafe, target.KindPathUnsafe, err)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, fs.ErrExist):
		return refusal(CodeNotRegular, target.KindPathUnsafe, err)
	}
	return err
}
