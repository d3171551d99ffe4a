// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// duration is ms for people: "0.8 s", "2m05s".
func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d < time.Minute {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}

// grouped writes n with a comma after every three digits.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

func bytesText(n int64) string {
	if n < 1024 {
		return plural(int(n), "byte")
	}
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/1024)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(int64(n)) + " " + what + "s"
}

// jsonText is an observation on one line, a string without its quotes.
func jsonText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "") != nil {
		return string(raw)
	}
	return strings.ReplaceAll(b.String(), "\n", " ") // within strings a newline is spelt \n
}

// shellLines quotes args for a POSIX shell, with every flag on a line of its own.
func shellLines(args []string) string {
	var b strings.Builder
	for i, a := range args {
		plain := func(r rune) bool {
			return strings.ContainsRune("-_./=:,@%+", r) || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
		}
		switch {
		case i == 0:
		case strings.HasPrefix(a, "-"):
			b.WriteString(" \\\n  ")
		default:
			b.WriteString(" ")
		}
		if a == "" || strings.ContainsFunc(a, func(r rune) bool { return !plain(r) }) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		b.WriteString(a)
	}
	return b.String()
}
