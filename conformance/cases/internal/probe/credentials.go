// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// credentials has a secret of the suite's own provider delivered to a command, in a sandbox of its
// own. The command tells a digest, which it cannot know without the secret.
func (b *bench) credentials(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
	if t.Target().Secrets == nil || t.Target().Wire == nil {
		return unknown, "", target.ErrUnavailable
	}
	if err := b.open(ctx, t); err != nil { // a target that hosts nothing has been noticed
		return without(err)
	}
	box, err := delivery.Arrange(ctx, t)
	if err != nil {
		return unknown, "", err
	}
	r, err := box.Run(ctx, "probe-credentials", "secret-frame")
	if code := target.CodeOf(err); code != "" {
		return absent, "a command that names a secret of a configured provider is refused with " + code, nil
	}
	if err != nil {
		return unknown, "", err
	}
	sum := sha256.Sum256(delivery.Frame(delivery.Name, box.Secret))
	if r.Facts["sha256"] != hex.EncodeToString(sum[:]) {
		return absent, fmt.Sprintf("descriptor 3 gave %d bytes, and they are not the secret's frame", r.Counts["bytes"]), nil
	}
	return present, "a command got the secret of the suite's provider on descriptor 3", nil
}
