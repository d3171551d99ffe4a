// SPDX-License-Identifier: Apache-2.0

// Command hallmark-quota performs the privileged steps of the workspace quota backends,
// one per process, for hallmark-worker. It owns nothing between runs. It takes exactly the
// argv below, reads no environment and no configuration, prints one JSON object on stdout
// and, when it fails, one sentence on stderr. It never makes a path from a workspace id.
//
//	hallmark-quota loop create  DIR ID BYTES INODES RESERVE_BYTES RESERVE_INODES
//	hallmark-quota loop mount   DIR ID
//	hallmark-quota loop verify  DIR ID
//	hallmark-quota loop usage   DIR ID
//	hallmark-quota loop release DIR ID WAIT_MS
//	hallmark-quota loop purge   DIR ID
//	hallmark-quota loop list    DIR
//	hallmark-quota project apply   DIR ID BYTES INODES FIRST LAST RESERVE_BYTES RESERVE_INODES
//	hallmark-quota project verify  DIR ID
//	hallmark-quota project usage   DIR ID
//	hallmark-quota project repair  DIR ID
//	hallmark-quota project release DIR ID WAIT_MS
//	hallmark-quota project list    DIR
//	hallmark-quota project state   DIR
//	hallmark-quota version
//
// FIRST and LAST are the project ids that may be given, both included. state says whether the
// kernel enforces project quota on the filesystem of DIR, which must exist, and makes nothing; every
// other project verb refuses when it does not.
//
// Exit codes: 0 done; 1 internal; 2 arguments; 10 host reserve; 11 busy; 12 not found;
// 13 not mounted as expected; 14 impossible bounds; 15 other bounds; 16 damaged; 17 tool missing;
// and of project: 18 not enforced; 19 changed meanwhile; 20 a file has a name outside; 21 a mount point,
// a device or an immutable file; 22 no free project id; 23 more than fits.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"
	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
)

// limit bounds every operation; the worker usually ends it earlier by killing the process.
const limit = 5 * time.Minute

const usage = "usage: hallmark-quota loop create|mount|verify|usage|release|purge|list DIR [ID ...], " +
	"hallmark-quota project apply|verify|usage|repair|release|list|state DIR [ID ...], or hallmark-quota version"

var countRE = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)

func main() {
	runtime.LockOSThread() // children die with this thread, see loopimage
	unix.Umask(0o077)
	out, err := run(os.Args[1:])
	if out != nil {
		if jerr := json.NewEncoder(os.Stdout).Encode(out); jerr != nil && err == nil {
			err = fmt.Errorf("write answer: %w", jerr)
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "hallmark-quota: %v\n", err)
	}
	os.Exit(exitcode.Of(err))
}

func wrong() error { return fmt.Errorf("%w; %s", exitcode.ErrUsage, usage) }

// run returns what to print, which is nil on failure, except for list.
func run(argv []string) (any, error) {
	if len(argv) == 1 && argv[0] == "version" {
		return map[string]string{"version": buildinfo.Version, "commit": buildinfo.Commit(), "treeState": buildinfo.TreeState()}, nil
	}
	if len(argv) < 3 {
		return nil, wrong()
	}
	backend, verb, dir, rest := argv[0], argv[1], argv[2], argv[3:]
	numbers, known := verbs[backend][verb]
	if !known || len(rest) != 1+numbers {
		return nil, wrong()
	}
	n := make([]int64, 0, 6)
	for _, s := range rest[min(1, len(rest)):] {
		if !countRE.MatchString(s) {
			return nil, fmt.Errorf("%w: %q is not a decimal count", exitcode.ErrUsage, s)
		}
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", exitcode.ErrUsage, err)
		}
		n = append(n, v)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if backend == "project" {
		return runProject(ctx, verb, dir, rest, n)
	}
	return runLoop(ctx, verb, dir, rest, n)
}

// verbs says how many numbers follow the workspace id; -1 is no id either.
var verbs = map[string]map[string]int{
	"loop":    {"create": 4, "mount": 0, "verify": 0, "usage": 0, "release": 1, "purge": 0, "list": -1},
	"project": {"apply": 6, "verify": 0, "usage": 0, "repair": 0, "release": 1, "list": -1, "state": -1},
}

func runLoop(ctx context.Context, verb, dir string, rest []string, n []int64) (any, error) {
	tools, err := loopimage.FindTools()
	if err != nil {
		return nil, err
	}
	store, err := loopimage.Open(dir, tools)
	if err != nil {
		return nil, err
	}
	switch verb {
	case "create":
		return answer(store.Create(ctx, rest[0], n[0], n[1], loopimage.Reserve{Bytes: n[2], Inodes: n[3]}))
	case "mount":
		return answer(store.Mount(ctx, rest[0]))
	case "verify":
		return answer(store.Verify(ctx, rest[0]))
	case "usage":
		return answer(store.Usage(ctx, rest[0]))
	case "release":
		wait, cancel := context.WithTimeout(ctx, min(time.Duration(n[0])*time.Millisecond, limit))
		defer cancel()
		return answer(store.Release(wait, rest[0]))
	case "purge":
		return answer(store.Purge(ctx, rest[0]))
	default:
		ids, err := store.List()
		return loopimage.Listed{WorkspaceIDs: ids}, err
	}
}

func answer[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
