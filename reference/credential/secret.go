// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"fmt"
	"log/slog"
)

// redacted is what every way of printing a secret gives.
const redacted = "[secret]"

// Value is one secret, or the frame that holds several. It prints as "[secret]" whatever the verb
// and whatever the encoder; only its own bytes give it away, so pass it on as a Value.
type Value []byte

// Wipe zeroes the bytes; the length stays.
func (v Value) Wipe() { clear(v) }

// Format implements [fmt.Formatter], for every verb.
func (Value) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// String implements [fmt.Stringer].
func (Value) String() string { return redacted }

// GoString implements [fmt.GoStringer].
func (Value) GoString() string { return redacted }

// LogValue implements [slog.LogValuer].
func (Value) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler].
func (Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON implements [json.Marshaler].
func (Value) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
