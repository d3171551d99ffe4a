// SPDX-License-Identifier: Apache-2.0

package signing

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"strings"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ErrKMS means that a KMS does not give a usable key.
var ErrKMS = errors.New("key of a KMS not usable")

// IsKMS says whether ref names a key of a KMS, "SCHEME://KEY", and not a file.
func IsKMS(ref string) bool { return strings.Contains(ref, "://") }

// Open returns the signer that ref names: the path of a private key file, for which ask gives the
// passphrase when it is encrypted, or a key of a KMS, "SCHEME://KEY". ask may be nil.
//
// No KMS is linked in. Sigstore's library looks for a provider that the program has registered, and
// else runs the program sigstore-kms-SCHEME from PATH, by sigstore's plugin protocol.
func Open(ctx context.Context, ref string, ask Passphrase) (*Signer, error) {
	if !IsKMS(ref) {
		return load(ref, ask)
	}
	remote, err := kms.Get(ctx, ref, crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrKMS, ref, err)
	}
	return fromRemote(ctx, ref, remote)
}

func fromRemote(ctx context.Context, ref string, remote signature.Signer) (*Signer, error) {
	key, err := remote.PublicKey(options.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: public key: %w", ErrKMS, ref, err)
	}
	public, err := evidence.NewPublicKey(key, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrKMS, ref, err)
	}
	return &Signer{signer: remote, public: public}, nil
}
