// SPDX-License-Identifier: Apache-2.0

// Package strictjson is the one decoder for JSON that crosses a trust boundary.
package strictjson
