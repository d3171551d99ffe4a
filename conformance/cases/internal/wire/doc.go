// SPDX-License-Identifier: Apache-2.0

// Package wire is the suite's own client of the worker API: requests as exact bytes, answers as
// they came. It owns the suite's copy of the error union (union.go), written from the protocol and
// not taken from the worker. It returns what was sent and received, and what an answer lacks; it
// never repairs, repeats or judges.
package wire
