// SPDX-License-Identifier: Apache-2.0

// Package exit carries a process exit status with one sentence and its remedy.
package exit

// Statuses of the command line.
const (
	OK         = 0
	Negative   = 1 // non-conformant, denied, a leftover
	Incomplete = 2 // a run that proves nothing
	Failed     = 3 // usage, engine or environment
)

// Error ends the process with Status; it prints Sentence, then Remedy when there is one.
type Error struct {
	Status   int
	Sentence string
	Remedy   string
	Cause    error
}

func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Sentence
	}
	return e.Sentence + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }
