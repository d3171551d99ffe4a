// SPDX-License-Identifier: Apache-2.0

package control

import "fmt"

// MaxSecret bounds the secret of a spawn: the largest frame of package credential, which this
// package does not read.
const MaxSecret = 4 + 2 + 16*(2+4+256) + 64<<10

const redacted = "[secret]"

// Secret is what the leader of one invocation reads on descriptor 3. It prints as "[secret]"
// whatever the verb and whatever the encoder.
type Secret []byte

// Format implements [fmt.Formatter], for every verb.
func (Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// String implements [fmt.Stringer].
func (Secret) String() string { return redacted }

// GoString implements [fmt.GoStringer].
func (Secret) GoString() string { return redacted }

// MarshalText implements [encoding.TextMarshaler], for log/slog too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON implements [json.Marshaler].
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
