// SPDX-License-Identifier: Apache-2.0

package api

import (
	_ "embed"
	"slices"
)

//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the contract of the wire as an OpenAPI 3.1 document in YAML. No operation serves
// it. What it says beyond OpenAPI's own members:
//
//   - x-op: the operation that a capability names
//   - x-codes: the codes that an operation may answer, without their prefix; below
//     components/schemas/ErrorCode, the whole table
//   - x-outcome-of: the operation whose failures a successful answer may hold
//   - x-line: the schema of each line of a stream; x-events: that of each kind of server-sent event
//   - x-payload: the schema of the payload of a JWS
//   - x-exactly-one: query names of which exactly one is needed
//   - x-limits: bounds that no schema can say
func OpenAPI() []byte { return slices.Clone(openAPI) }
