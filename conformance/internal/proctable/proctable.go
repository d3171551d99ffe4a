// SPDX-License-Identifier: Apache-2.0

// Package proctable reads the host's process table. It observes /proc, owns nothing, and never
// signals a process.
package proctable

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is one row of the host's process table.
type Process struct {
	Pid, Parent int
	Start       uint64 // clock ticks after boot: with Pid, an identity
	State       byte
	Name        string // comm
	Command     string // cmdline, arguments joined by blanks, at most 4 KiB
}

// Processes reads /proc once. What ends during the read is left out.
func Processes() (map[int]Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("/proc holds no process")
	}
	table := map[int]Process{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if p, err := ReadProcess(pid); err == nil {
			table[pid] = p
		}
	}
	return table, nil
}

// ReadProcess reads one row.
func ReadProcess(pid int) (Process, error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return Process{}, err
	}
	// comm may hold anything, a closing bracket too: the last one ends it.
	text := string(stat)
	open, shut := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || shut < open {
		return Process{}, fmt.Errorf("stat of %d has no name", pid)
	}
	rest := strings.Fields(text[shut+1:])
	if len(rest) < 20 {
		return Process{}, fmt.Errorf("stat of %d has %d fields", pid, len(rest))
	}
	parent, err := strconv.Atoi(rest[1])
	if err != nil {
		return Process{}, fmt.Errorf("stat of %d: %w", pid, err)
	}
	start, err := strconv.ParseUint(rest[19], 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("stat of %d: %w", pid, err)
	}
	cmdline, err := os.ReadFile(dir + "cmdline")
	if err != nil {
		return Process{}, err
	}
	cmdline = cmdline[:min(len(cmdline), 4096)]
	return Process{Pid: pid, Parent: parent, Start: start, State: rest[0][0], Name: text[open+1 : shut],
		Command: strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))}, nil
}
