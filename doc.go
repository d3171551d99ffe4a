// SPDX-License-Identifier: Apache-2.0

// Package hallmark is the root of the module. It holds no code: the rules that span folders,
// such as which package may import which, are tests here.
//
// Read on in reference/api, reference/session, conformance, one case below conformance/cases,
// evidence, and EVIDENCE.md.
package hallmark
