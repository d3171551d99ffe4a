// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"time"
)

// timeLayout is the only spelling of a time: UTC, whole seconds, capital letters.
const timeLayout = "2006-01-02T15:04:05Z"

// Timestamp is a time as it is written in evidence, for example "2026-11-29T20:39:00Z".
type Timestamp string

// At returns the Timestamp of t, cut to whole seconds.
func At(t time.Time) Timestamp { return Timestamp(t.UTC().Format(timeLayout)) }

// Time parses t. ok is false for every other spelling: an offset, a fraction, a leap second.
func (t Timestamp) Time() (_ time.Time, ok bool) {
	v, err := time.Parse(timeLayout, string(t))
	return v, err == nil && v.Format(timeLayout) == string(t)
}

// Digest returns "sha256:" and 64 hex digits.
func Digest(b []byte) string {
	s := sha256.Sum256(b)
	return digestPrefix + hex.EncodeToString(s[:])
}

const digestPrefix = "sha256:"

// ValidDigest says whether s is a digest as evidence spells it.
func ValidDigest(s string) bool {
	h, ok := strings.CutPrefix(s, digestPrefix)
	return ok && validHex(h, 64)
}

// ValidNonce says whether s is 16 to 128 letters, digits, dots, dashes and underscores.
func ValidNonce(s string) bool { return noncePattern.MatchString(s) }

// ValidWord says whether s is a word as evidence spells reasons.
func ValidWord(s string) bool { return wordPattern.MatchString(s) }

func validHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

var (
	caseIDPattern = regexp.MustCompile(`^[A-Z]{2,3}-[0-9]{2,3}$`)
	wordPattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,63}$`)
	noncePattern  = regexp.MustCompile(`^[A-Za-z0-9._-]{16,128}$`)
	// namePattern is for artifacts: relative, without empty, dot or dot-dot components.
	namePattern  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(?:[./][a-z0-9_-]+)*$`)
	mediaPattern = regexp.MustCompile(`^[a-z0-9]+/[a-z0-9][a-z0-9.+-]{0,126}$`)
)
