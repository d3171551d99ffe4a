// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

const waiverUsage = "excuse a case: CASE@REVISION=REASON,BUG,EXPIRES, for example FS-02@1=target-read,https://bugs.example/12,2027-01-31 (repeatable)"

// parseWaivers reads the values of --waiver. What could never excuse anything is refused: a case or
// revision that the catalogue does not have, no bug, an end that has passed.
func parseWaivers(values []string, cat evidence.Catalogue, now time.Time) ([]evidence.Waiver, error) {
	var out []evidence.Waiver
	for _, v := range values {
		w, err := parseWaiver(v)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(cat.Cases, func(c evidence.CaseRef) bool { return c.ID == w.Case })
		if i < 0 {
			return nil, usage(fmt.Sprintf("--waiver names %q, and the catalogue has no such case", w.Case), "see `hallmark cases`")
		}
		if r := cat.Cases[i].Revision; r != w.Revision {
			return nil, usage(fmt.Sprintf("--waiver is for revision %d of %s, and the catalogue has revision %d", w.Revision, w.Case, r),
				"look at the case as it is now, and waive that revision if the bug is still there")
		}
		if end, _ := w.Expires.Time(); !now.Before(end) {
			return nil, usage(fmt.Sprintf("the waiver of %s ended at %s", w.Case, w.Expires), "name an end that is to come, or mend the bug")
		}
		if slices.ContainsFunc(out, func(o evidence.Waiver) bool { return o.Case == w.Case }) {
			return nil, usage(fmt.Sprintf("--waiver names %s twice", w.Case), "name each case once")
		}
		out = append(out, w)
	}
	return out, nil
}

func parseWaiver(v string) (evidence.Waiver, error) {
	form := func(what string) error {
		return usage(fmt.Sprintf("--waiver %q has no %s", v, what), "write CASE@REVISION=REASON,BUG,EXPIRES, with REASON that of the case's row and EXPIRES as 2027-01-31 or 2027-01-31T12:00:00Z")
	}
	subject, rest, ok := strings.Cut(v, "=")
	if !ok {
		return evidence.Waiver{}, form("REASON,BUG,EXPIRES after a =")
	}
	id, revision, ok := strings.Cut(subject, "@")
	n, err := strconv.ParseInt(revision, 10, 64)
	if !ok || err != nil || n < 1 {
		return evidence.Waiver{}, form("CASE@REVISION before the =")
	}
	reason, rest, ok := strings.Cut(rest, ",")
	if !ok || !evidence.ValidWord(reason) {
		return evidence.Waiver{}, form("reason")
	}
	comma := strings.LastIndex(rest, ",")
	if comma < 0 {
		return evidence.Waiver{}, form("end")
	}
	bug, expires := strings.TrimSpace(rest[:comma]), rest[comma+1:]
	if bug == "" {
		return evidence.Waiver{}, form("bug")
	}
	if len(expires) == len(time.DateOnly) {
		expires += "T00:00:00Z"
	}
	w := evidence.Waiver{Case: id, Revision: n, Reason: reason, Bug: bug, Expires: evidence.Timestamp(expires)}
	if _, ok := w.Expires.Time(); !ok {
		return evidence.Waiver{}, form("end that is a date")
	}
	return w, nil
}

// with puts new waivers in the place of older ones for the same cases.
func with(old, added []evidence.Waiver) []evidence.Waiver {
	out := slices.DeleteFunc(slices.Clone(old), func(o evidence.Waiver) bool {
		return slices.ContainsFunc(added, func(w evidence.Waiver) bool { return w.Case == o.Case })
	})
	return append(out, added...)
}

func showWaiver(w evidence.Waiver) string {
	return fmt.Sprintf("%s@%d %s until %s: %s", w.Case, w.Revision, w.Reason, w.Expires, w.Bug)
}
