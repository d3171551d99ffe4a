// SPDX-License-Identifier: Apache-2.0

// Package execdriver drives a runtime through a program in any language.
//
// The driver starts the program, writes one JSON request a line to its standard input and reads
// one JSON answer a line from its standard output:
//
//	{"id":2,"op":"create","workspace":"ws-1","image":"sha256:…",…}
//	{"id":2,"ok":{"sandbox":"sb-1"}}
//	{"id":2,"error":{"code":"MY_FULL","kind":"busy","text":"no slot is free"}}
//
// The protocol is [Protocol]; docs/exec-driver.md documents every operation, and its transcript
// runs as a test. Whatever holds bytes of the tenant (argv, cwd, stdin, paths, bodies, output) is
// base64. A line has at most [MaxLine] bytes. Answers come in any order, unless the program says
// "serial": then one request at a time is under way, and the suite does not run cases that need
// two.
//
// The package owns the process: its group, its log, its folder, its end. It checks what can be
// checked of the program's word: a workspace path by a file with random contents, a process and
// cgroups by the kernel, a container by the engine. A program that breaks the protocol gets a
// [*ProtocolError], at once and for every later call: no call waits longer than its bound, and a
// broken program is no runtime whose refusals could be judged. It never repairs an answer.
//
// Read next: docs/exec-driver.md, then examples/bubblewrap.
package execdriver
