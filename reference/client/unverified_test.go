// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/base64"
	"encoding/json"
	"testing"
)

func unverified(t *testing.T, part string, v any) {
	raw, err := base64.RawURLEncoding.DecodeString(part)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		t.Error(err)
	}
}
