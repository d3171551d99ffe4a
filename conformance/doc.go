// SPDX-License-Identifier: Apache-2.0

// Package conformance is the suite: the case model, the runner, the reports.
//
// It owns the run: which cases are registered, the arming of oracles, the statuses, the case
// records and their seal, and everything that a case created in the target. It observes a
// runtime only through package target. It never judges in a helper (cases judge), never
// deletes what it did not create, and never asserts a verdict: evidence.Verdict computes it
// from the rows.
//
// [Run] executes a child of the running binary, since Ginkgo's RunSpecs works once per process
// and can end it; a program that calls Run calls [ChildMain] first thing in main. [Test] does both
// in an ordinary test. [Register] adds the cases to somebody else's Ginkgo suite, as no evidence.
//
// With several processes the child is a launcher: Ginkgo's run command, which starts them, hands
// them the cases one by one and merges their reports. Each process opens a target of its own and
// arms its oracles; the records are shared under a lock and sealed once, by the first process. Cases
// that are [Case.Exclusive] run in that one when the others have closed their targets.
//
// A pipe ties each of them to whoever has started it: its end is the order to stop. Whatever ends
// early, the others clean up, nothing is sealed, and what nobody could clean up is found by the next
// run: by locks that only the living hold, in the work folder and in that for temporary files.
//
// What a case makes through [T] is recorded before it is made, and removed after. What is left then
// is found by looking at the host, the engine and the suite's own process: the first two are the
// target's to answer for, the last is an error of the suite.
//
// Read next: one case below cases/, then package evidence.
package conformance
