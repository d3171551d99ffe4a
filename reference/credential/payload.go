// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"encoding/base64"
	"errors"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// PayloadVersion is the only version of a payload.
const PayloadVersion = "hallmark.credential.v1"

// MaxPayloadBytes bounds a payload: 64 KiB of values in base64, and room for the rest.
const MaxPayloadBytes = 128 << 10

var payloadLimits = strictjson.Limits{Bytes: MaxPayloadBytes, Depth: 4, StringBytes: MaxPayloadBytes}

type payloadDoc struct {
	Version         string       `json:"version"`
	Scope           payloadScope `json:"scope"`
	ExpiresAtUnixMs int64        `json:"expiresAtUnixMs"`
	Fields          []payloadRow `json:"fields"`
}

type payloadScope struct {
	WorkspaceID string `json:"workspaceId"`
	BindingID   string `json:"bindingId"`
	ExecutionID string `json:"executionId"`
}

type payloadRow struct {
	FieldID string     `json:"fieldId"`
	Value   valueInRaw `json:"value"`
}

// valueInRaw is the base64 of a value as it stands in the payload's own buffer. It is not copied:
// whoever zeroes the payload has zeroed it too. A test holds the decoder to that.
type valueInRaw []byte

var errValue = errors.New("value is not plain base64")

// UnmarshalJSON implements [json.Unmarshaler].
func (v *valueInRaw) UnmarshalJSON(b []byte) error {
	if len(b) < 2 || b[0] != '"' || bytes.IndexByte(b, '\\') >= 0 {
		return errValue // an escape has no place in base64
	}
	*v = b[1 : len(b)-1]
	return nil
}

func (v valueInRaw) decode() (Value, error) {
	out := make(Value, base64.StdEncoding.DecodedLen(len(v)))
	n, err := base64.StdEncoding.Strict().Decode(out, v) // Strict: no spare bits
	if err != nil {
		out.Wipe()
		return nil, errValue
	}
	return out[:n], nil
}

// judge decodes raw for a reference and returns the values by field id, and when they expire. On a refusal nothing of
// them is left. The text of a refusal is a [Reason]: a decoder's error could quote the payload.
func judge(raw []byte, r Reference, now time.Time) (_ map[string]Value, expires time.Time, reason Reason) {
	if len(raw) > MaxPayloadBytes {
		return nil, expires, PayloadTooLarge
	}
	var doc payloadDoc
	if strictjson.Unmarshal(raw, &doc, payloadLimits) != nil {
		return nil, expires, PayloadMalformed
	}
	switch {
	case doc.Version != PayloadVersion:
		return nil, expires, PayloadVersionUnknown
	case doc.Scope != (payloadScope{r.subject.WorkspaceID, r.binding.BindingID, r.subject.ExecutionID}):
		return nil, expires, PayloadScope
	case doc.ExpiresAtUnixMs <= now.UnixMilli():
		return nil, expires, PayloadExpired
	case len(doc.Fields) != len(r.fields):
		return nil, expires, PayloadFields
	}
	asked := map[string]bool{}
	for _, f := range r.fields {
		asked[f.FieldID] = true
	}
	out := map[string]Value{}
	defer func() {
		if reason != "" {
			for _, v := range out {
				v.Wipe()
			}
		}
	}()
	total := 0
	for _, row := range doc.Fields {
		if !asked[row.FieldID] || out[row.FieldID] != nil {
			return nil, expires, PayloadFields
		}
		v, err := row.Value.decode()
		if err != nil {
			return nil, expires, PayloadMalformed
		}
		out[row.FieldID] = v
		if total += len(v); total > MaxValueBytes {
			return nil, expires, PayloadTooLarge
		}
	}
	return out, time.UnixMilli(doc.ExpiresAtUnixMs), ""
}

// CheckPayload judges a payload as the resolver does, for tests of a provider. The error is a
// [Reason] or nil; raw stays as it is.
func CheckPayload(raw []byte, q Request, now time.Time) error {
	r := Reference{binding: Binding{BindingID: q.BindingID}, subject: Subject{WorkspaceID: q.WorkspaceID, ExecutionID: q.ExecutionID}}
	for _, id := range q.FieldIDs {
		r.fields = append(r.fields, api.CredentialField{Name: id, FieldID: id})
	}
	values, _, reason := judge(raw, r, now)
	for _, v := range values {
		v.Wipe()
	}
	if reason != "" {
		return reason
	}
	return nil
}
