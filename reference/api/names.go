// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// DigestPrefix begins every digest on the wire.
const DigestPrefix = "sha256:"

// ValidID reports whether s is [A-Za-z0-9][A-Za-z0-9._:-]{0,127}.
func ValidID(s string) bool {
	if s == "" || len(s) > MaxIDBytes {
		return false
	}
	for i := range len(s) {
		if !alnum(s[i]) && (i == 0 || !strings.ContainsRune("._:-", rune(s[i]))) {
			return false
		}
	}
	return true
}

func alnum(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
}

// ValidDigest reports whether s is sha256: and 64 lower-case hex digits.
func ValidDigest(s string) bool {
	rest, ok := strings.CutPrefix(s, DigestPrefix)
	return ok && lowerHex(rest, 64)
}

func lowerHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Token reports whether s is between min and max characters of the base64url alphabet.
func Token(s string, min, max int) bool {
	if len(s) < min || len(s) > max {
		return false
	}
	for i := range len(s) {
		if !alnum(s[i]) && s[i] != '-' && s[i] != '_' {
			return false
		}
	}
	return true
}

// Digest is the digest of b as it is written on the wire.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return DigestPrefix + hex.EncodeToString(sum[:])
}

// TargetDigest covers method, LF and the raw request target.
func TargetDigest(method, target string) string { return Digest([]byte(method + "\n" + target)) }

// CanonicalDigest is the digest of v in RFC 8785 form: the identity of a request, whatever
// its spelling.
func CanonicalDigest(v any) (string, error) {
	b, err := strictjson.Canonical(v)
	if err != nil {
		return "", fmt.Errorf("canonical request: %w", err)
	}
	return Digest(b), nil
}

// CheckPath refuses what is not a relative path of 1..4096 bytes without NUL and without an
// empty, "." or ".." component. The code is REQUEST_INVALID for the length, else PATH_UNSAFE.
func CheckPath(p []byte) error {
	if len(p) == 0 || len(p) > MaxPathBytes {
		return E(RequestInvalid, fmt.Errorf("path of %d bytes", len(p)))
	}
	for part := range strings.SplitSeq(string(p), "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return E(PathUnsafe, errors.New("path with an empty, dot or dot-dot component"))
		case strings.IndexByte(part, 0) >= 0:
			return E(PathUnsafe, errors.New("path with NUL"))
		}
	}
	return nil
}
