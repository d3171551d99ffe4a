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
// What a case makes through [T] is recorded before it is made, and removed after. What is left then
// is found by looking at the host, the engine and the suite's own process: the first two are the
// target's to answer for, the last is an error of the suite.
//
// Read next: one case below cases/, then package evidence.
package conformance
