// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// member is one name and value of an object, as text: what no Go map could hold can be written.
type member struct{ name, value string }

func write(members []member) string {
	var parts []string
	for _, m := range members {
		parts = append(parts, fmt.Sprintf("%q:%s", m.name, m.value))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// members splits an object that this package wrote.
func members(t testing.TB, text []byte) []member {
	t.Helper()
	var out []member
	dec := json.NewDecoder(strings.NewReader(string(text)))
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err == nil {
			err = dec.Decode(&value)
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, member{name.(string), string(value)})
	}
	return out
}

// shape is one of the three kinds of token, with a request for which it is good.
type shape struct {
	name   string
	grant  Grant
	want   Want
	absent []string // claims of the other shapes
}

func shapes(b *bench) []shape {
	challenge := strings.Repeat("c", 32)
	return []shape{
		{"sandbox", Grant{Op: b.want.Op, Method: b.want.Method, Target: b.want.Target, WorkspaceID: "ws", SandboxID: b.want.SandboxID, Epoch: "epoch-1"}, b.want, []string{"challenge"}},
		{"workspace", Grant{Op: api.OpCreate, Method: "POST", Target: "/v1/sandboxes", WorkspaceID: "ws", Epoch: "epoch-1"},
			Want{Op: api.OpCreate, Method: "POST", Target: "/v1/sandboxes"}, []string{"challenge", "sandboxId"}},
		{"health", Grant{Op: api.OpHealth, Method: "GET", Target: "/v1/health", Challenge: challenge},
			Want{Op: api.OpHealth, Method: "GET", Target: "/v1/health"}, []string{"epoch", "sub", "sandboxId"}},
	}
}

// defect makes something wrong out of the member at i.
type defect struct {
	name string
	of   func(all []member, i int) []member
}

func with(all []member, i int, value string) []member {
	out := append([]member{}, all...)
	out[i].value = value
	return out
}

func renamed(all []member, i int, name string) []member {
	out := append([]member{}, all...)
	out[i].name = name
	return out
}

func value(name string, of func(old string) string) defect {
	return defect{name, func(all []member, i int) []member { return with(all, i, of(all[i].value)) }}
}

// anywhere are defects of a member whatever its type.
func anywhere() []defect {
	return []defect{
		{"missing", func(all []member, i int) []member { return append(append([]member{}, all[:i]...), all[i+1:]...) }},
		{"twice", func(all []member, i int) []member { return append(append([]member{}, all...), all[i]) }},
		{"twice, another first", func(all []member, i int) []member {
			return append([]member{{all[i].name, `"other"`}}, all...)
		}},
		{"twice, another last", func(all []member, i int) []member {
			return append(append([]member{}, all...), member{all[i].name, `"other"`})
		}},
		{"case variant besides", func(all []member, i int) []member {
			return append(append([]member{}, all...), member{strings.ToUpper(all[i].name), all[i].value})
		}},
		{"case variant instead", func(all []member, i int) []member {
			return renamed(all, i, strings.ToUpper(all[i].name[:1])+all[i].name[1:])
		}},
		{"name with a NUL", func(all []member, i int) []member { return renamed(all, i, all[i].name+"\x00") }},
		{"name with a space", func(all []member, i int) []member { return renamed(all, i, all[i].name+" ") }},
		value("null", func(string) string { return "null" }),
		value("true", func(string) string { return "true" }),
		value("in an array", func(v string) string { return "[" + v + "]" }),
		value("empty array", func(string) string { return "[]" }),
		value("in an object", func(v string) string { return `{"v":` + v + "}" }),
	}
}

// ofText are defects of a string.
func ofText() []defect {
	inside := func(add func(string) string) func(string) string {
		return func(v string) string { return `"` + add(strings.Trim(v, `"`)) + `"` }
	}
	return []defect{
		value("number", func(string) string { return "1" }),
		value("empty", func(string) string { return `""` }),
		value("another", inside(func(string) string { return "other" })),
		value("shorter", inside(func(v string) string { return v[:len(v)-1] })),
		value("longer", inside(func(v string) string { return v + "a" })),
		value("upper case", inside(func(v string) string {
			if u := strings.ToUpper(v); u != v {
				return u
			}
			return strings.ToLower(v)
		})),
		value("newline behind", inside(func(v string) string { return v + `\n` })),
		value("space before", inside(func(v string) string { return " " + v })),
		value("NUL behind", inside(func(v string) string { return v + `\u0000` })),
		value("raw newline", inside(func(v string) string { return v + "\n" })),
		value("invalid UTF-8", inside(func(v string) string { return v + "\xff" })),
		value("lone surrogate", inside(func(v string) string { return v + `\ud800` })),
		value("1,025 bytes", func(string) string { return `"` + strings.Repeat("a", 1025) + `"` }),
	}
}

// ofNumber are defects of an integer of seconds.
func ofNumber() []defect {
	return []defect{
		value("string", func(v string) string { return `"` + v + `"` }),
		value("fraction", func(v string) string { return v + ".0" }),
		value("half", func(v string) string { return v + ".5" }),
		value("exponent", func(v string) string { return v + "e0" }),
		value("positive exponent", func(v string) string { return v[:len(v)-1] + "E1" }),
		value("zero", func(string) string { return "0" }),
		value("minus zero", func(string) string { return "-0" }),
		value("negative", func(v string) string { return "-" + v }),
		value("plus sign", func(v string) string { return "+" + v }),
		value("leading zero", func(v string) string { return "0" + v }),
		value("hexadecimal", func(string) string { return "0x7fffffff" }),
		value("2^53", func(string) string { return "9007199254740992" }),
		value("2^63", func(string) string { return "9223372036854775808" }),
		value("1e308", func(string) string { return "1e308" }),
		value("1e400", func(string) string { return "1e400" }),
		value("NaN", func(string) string { return "NaN" }),
		value("empty string", func(string) string { return `""` }),
	}
}

// free says that the defect leaves a value which is as good: a jti and a challenge are any
// random text within their bounds, a sub any identifier.
func free(shape, claim, defect string) bool {
	switch claim {
	case "jti", "challenge":
		return defect == "shorter" || defect == "longer" || defect == "upper case"
	case "sub":
		return defect == "another" || defect == "shorter" || defect == "longer" || defect == "upper case"
	}
	return false
}

// TestEachClaimWithEachDefect crosses every claim of every shape with every defect of its type.
func TestEachClaimWithEachDefect(t *testing.T) {
	b := newBench(t)
	rows := 0
	for _, s := range shapes(b) {
		c, err := b.minter.Claims(s.grant)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(c.Payload())
		if err != nil {
			t.Fatal(err)
		}
		all := members(t, text)
		check := func(name string, payload string, want api.Code) {
			rows++
			t.Run(s.name+"/"+name, func(t *testing.T) {
				if payload == write(all) {
					t.Fatal("the row alters nothing")
				}
				got, err := b.verifier.Verify(craft(b.key, goodHead, payload), s.want)
				if codeOf(err) != want || err != nil && got != (Claims{}) {
					t.Errorf("got %+v, %v; want %q", got, err, want)
				}
			})
		}
		if _, err := b.verifier.Verify(craft(b.key, goodHead, write(all)), s.want); err != nil {
			t.Fatalf("%s: the unaltered token: %v", s.name, err)
		}
		for i, m := range all {
			defects := append(anywhere(), ofText()...)
			if m.name == "iat" || m.name == "exp" {
				defects = append(anywhere(), ofNumber()...)
			}
			for _, d := range defects {
				want := api.Unauthenticated
				if free(s.name, m.name, d.name) {
					want = ""
				}
				check(m.name+"/"+d.name, write(d.of(all, i)), want)
			}
		}
		for _, extra := range append(s.absent, "nbf", "scope", "azp", "cnf", "", "__proto__") {
			for _, v := range []string{`""`, `"x"`, "null", "1", `"epoch-1"`, `"` + strings.Repeat("a", 32) + `"`} {
				check("extra "+extra+"/"+v, write(append(append([]member{}, all...), member{extra, v})), api.Unauthenticated)
			}
		}
		// The same claims for a request that differs in one thing.
		for name, alter := range map[string]func(*Want){
			"method":         func(w *Want) { w.Method = "PATCH" },
			"method in case": func(w *Want) { w.Method = strings.ToLower(w.Method) },
			"target":         func(w *Want) { w.Target += "x" },
			"query":          func(w *Want) { w.Target += "?" },
			"sandbox":        func(w *Want) { w.SandboxID = strings.Repeat("b", 32) },
		} {
			rows++
			t.Run(s.name+"/another "+name, func(t *testing.T) {
				w := s.want
				alter(&w)
				if _, err := b.verifier.Verify(craft(b.key, goodHead, write(all)), w); codeOf(err) != api.Unauthenticated {
					t.Errorf("got %v", err)
				}
			})
		}
		for _, op := range api.Ops() {
			if op == s.want.Op {
				continue
			}
			rows++
			t.Run(s.name+"/for "+string(op), func(t *testing.T) {
				w := s.want
				w.Op = op
				if _, err := b.verifier.Verify(craft(b.key, goodHead, write(all)), w); codeOf(err) != api.Unauthenticated {
					t.Errorf("got %v", err)
				}
			})
		}
	}
	t.Logf("%d rows", rows)
	if rows < 750 {
		t.Errorf("%d rows", rows)
	}
}

// TestEachHeaderMemberWithEachDefect does the same for the header.
func TestEachHeaderMemberWithEachDefect(t *testing.T) {
	b := newBench(t)
	payload, err := json.Marshal(b.claims(t).Payload())
	if err != nil {
		t.Fatal(err)
	}
	all := members(t, []byte(goodHead))
	check := func(name, head string) {
		t.Run(name, func(t *testing.T) {
			if head == write(all) {
				t.Fatal("the row alters nothing")
			}
			if _, err := b.verifier.Verify(craft(b.key, head, string(payload)), b.want); codeOf(err) != api.Unauthenticated {
				t.Errorf("got %v", err)
			}
		})
	}
	for i, m := range all {
		for _, d := range append(anywhere(), ofText()...) {
			check(m.name+"/"+d.name, write(d.of(all, i)))
		}
	}
	for _, extra := range []string{"crit", "b64", "zip", "cty", "enc", "jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256", "nonce", ""} {
		for _, v := range []string{`""`, "null", "true", "false", `["exp"]`, `[]`, `{}`} {
			check("extra "+extra+"/"+v, write(append(append([]member{}, all...), member{extra, v})))
		}
	}
	for _, typ := range []string{"JWT", "jwt", TypeReceipt, TypeHealth, strings.ToUpper(TypeCapability), "application/" + TypeCapability} {
		check("typ "+typ, write(with(all, 2, `"`+typ+`"`)))
	}
}

// TestAlgorithms: whatever else the header says, and however well it is signed for that.
func TestAlgorithms(t *testing.T) {
	b := newBench(t)
	payload, err := json.Marshal(b.claims(t).Payload())
	if err != nil {
		t.Fatal(err)
	}
	pub := b.key.Public().(ed25519.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(alg string, sign func(text string) []byte) string {
		h := `{"alg":"` + alg + `","kid":"k1","typ":"` + TypeCapability + `"}`
		text := base64.RawURLEncoding.EncodeToString([]byte(h)) + "." + base64.RawURLEncoding.EncodeToString(payload)
		return text + "." + base64.RawURLEncoding.EncodeToString(sign(text))
	}
	mac := func(alg string, h func() hash.Hash, key []byte) string {
		return signed(alg, func(text string) []byte {
			m := hmac.New(h, key)
			m.Write([]byte(text))
			return m.Sum(nil)
		})
	}
	own := func(text string) []byte { return ed25519.Sign(b.key, []byte(text)) }
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	by := func(m jwt.SigningMethod, key any) func(string) []byte {
		return func(text string) []byte {
			out, err := m.Sign(text, key)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
	}
	if _, err := b.verifier.Verify(signed("EdDSA", own), b.want); err != nil {
		t.Fatalf("the right algorithm: %v", err)
	}
	for name, token := range map[string]string{
		"none":                            signed("none", func(string) []byte { return nil }),
		"none with a signature":           signed("none", own),
		"None":                            signed("None", own),
		"empty":                           signed("", own),
		"HS256 with the key's bytes":      mac("HS256", sha256.New, pub),
		"HS256 with the key's DER":        mac("HS256", sha256.New, der),
		"HS256 with the key's PEM":        mac("HS256", sha256.New, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
		"HS256 with the key's base64":     mac("HS256", sha256.New, []byte(base64.StdEncoding.EncodeToString(pub))),
		"HS384 with the key's bytes":      mac("HS384", sha512.New384, pub),
		"HS512 with the key's bytes":      mac("HS512", sha512.New, pub),
		"HS256 with an empty key":         mac("HS256", sha256.New, nil),
		"HS256 over an Ed25519 signature": signed("HS256", own),
		"EdDSA over an HMAC":              mac("EdDSA", sha256.New, pub),
		"ES256":                           signed("ES256", by(jwt.SigningMethodES256, ec)),
		"ES256 called EdDSA":              signed("EdDSA", by(jwt.SigningMethodES256, ec)),
		"RS256":                           signed("RS256", by(jwt.SigningMethodRS256, rs)),
		"PS256":                           signed("PS256", by(jwt.SigningMethodPS256, rs)),
		"eddsa":                           signed("eddsa", own),
		"EDDSA":                           signed("EDDSA", own),
		"Eddsa":                           signed("Eddsa", own),
		"EdDSA with a space":              signed("EdDSA ", own),
		"Ed25519, the name of RFC 9864":   signed("Ed25519", own),
		"Ed25519ph":                       signed("EdDSA", prehashed(t, b.key)),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := b.verifier.Verify(token, b.want); codeOf(err) != api.Unauthenticated {
				t.Errorf("got %v", err)
			}
		})
	}
}

func prehashed(t *testing.T, key ed25519.PrivateKey) func(string) []byte {
	return func(text string) []byte {
		sum := sha512.Sum512([]byte(text))
		out, err := key.Sign(rand.Reader, sum[:], &ed25519.Options{Hash: 7}) // crypto.SHA512
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// TestRotation: old and new count while both are configured; one that was removed does not.
func TestRotation(t *testing.T) {
	b := newBench(t)
	verifier := func(keys ...Key) *Verifier {
		cfg := b.verifier.cfg
		cfg.Keys = keys
		v, err := NewVerifier(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	older := Key{"k1", b.key.Public().(ed25519.PublicKey)}
	newer := Key{"k2", b.other.Public().(ed25519.PublicKey)}
	sign := func(key ed25519.PrivateKey, kid string) string {
		token, err := Sign(key, kid, TypeCapability, b.claims(t).Payload())
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	for _, tt := range []struct {
		name     string
		verifier *Verifier
		token    string
		want     api.Code
	}{
		{"before: old key", verifier(older), sign(b.key, "k1"), ""},
		{"before: new key", verifier(older), sign(b.other, "k2"), api.Unauthenticated},
		{"during: old key", verifier(older, newer), sign(b.key, "k1"), ""},
		{"during: new key", verifier(older, newer), sign(b.other, "k2"), ""},
		{"during, other order: old key", verifier(newer, older), sign(b.key, "k1"), ""},
		{"during, other order: new key", verifier(newer, older), sign(b.other, "k2"), ""},
		{"during: old key under the new id", verifier(older, newer), sign(b.key, "k2"), api.Unauthenticated},
		{"during: new key under the old id", verifier(older, newer), sign(b.other, "k1"), api.Unauthenticated},
		{"during: a third id", verifier(older, newer), sign(b.other, "k3"), api.Unauthenticated},
		{"after: removed key", verifier(newer), sign(b.key, "k1"), api.Unauthenticated},
		{"after: removed key under the new id", verifier(newer), sign(b.key, "k2"), api.Unauthenticated},
		{"after: new key", verifier(newer), sign(b.other, "k2"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := tt.verifier.Verify(tt.token, b.want); codeOf(err) != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestTimes has the worker's clock at now; what is shown as skew is the control plane's clock.
func TestTimes(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, tt := range []struct {
		name     string
		iat, exp time.Duration // from the worker's now
		late     time.Duration // of the check within its second
		want     api.Code
	}{
		{"fresh", 0, time.Minute, 0, ""},
		{"last second", -59 * time.Second, time.Second, 999 * time.Millisecond, ""},
		{"ends now", -time.Minute, 0, 0, api.CapabilityExpired},
		{"ended a second ago", -time.Minute, -time.Second, 0, api.CapabilityExpired},
		{"five minutes", 0, 5 * time.Minute, 0, ""},
		{"five minutes, nearly over", -299 * time.Second, time.Second, 0, ""},
		{"five minutes and a second", 0, 301 * time.Second, 0, api.Unauthenticated},
		{"a year", 0, year, 0, api.Unauthenticated},
		{"skew: 30 s ahead", 30 * time.Second, 90 * time.Second, 0, ""},
		{"skew: 30 s ahead and five minutes", 30 * time.Second, 330 * time.Second, 0, ""},
		{"skew: 31 s ahead", 31 * time.Second, 91 * time.Second, 0, api.CapabilityExpired},
		{"skew: 31 s ahead, late in the second", 31 * time.Second, 91 * time.Second, 999 * time.Millisecond, api.CapabilityExpired},
		{"skew: a minute behind, still alive", -time.Minute, time.Minute, 0, ""},
		{"skew: a minute behind, no leeway", -2 * time.Minute, -time.Second, 0, api.CapabilityExpired},
		{"far past", -year, -year + time.Minute, 0, api.CapabilityExpired},
		{"far past, but not over", -year, time.Minute, 0, api.Unauthenticated},
		{"far ahead", year, year + time.Minute, 0, api.CapabilityExpired},
		{"ends as it begins", 0, 0, 0, api.Unauthenticated},
		{"ends before it begins", time.Second, -time.Second, 0, api.Unauthenticated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			for _, s := range shapes(b) {
				c, err := b.minter.Claims(s.grant)
				if err != nil {
					t.Fatal(err)
				}
				at := b.now
				c.IssuedAt, c.ExpiresAt = at.Add(tt.iat).Unix(), at.Add(tt.exp).Unix()
				token, err := b.minter.Sign(c)
				if err != nil {
					t.Fatal(err)
				}
				b.now = at.Add(tt.late)
				if _, err := b.verifier.Verify(token, s.want); codeOf(err) != tt.want || (err == nil) != (tt.want == "") {
					t.Errorf("%s: got %v, want %q", s.name, err, tt.want)
				}
				b.now = at
			}
		})
	}
	// A token that is wrong in another way too says nothing of its time.
	b := newBench(t)
	c := b.claims(t)
	c.IssuedAt, c.ExpiresAt, c.Audience = c.IssuedAt-600, c.ExpiresAt-600, "other"
	token, err := b.minter.Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.verifier.Verify(token, b.want); codeOf(err) != api.Unauthenticated {
		t.Errorf("expired, and for another worker: %v", err)
	}
}

// TestTokenSize: 4,096 bytes are a token, 4,097 are not. Spaces between claims are signed too.
func TestTokenSize(t *testing.T) {
	b := newBench(t)
	payload, err := json.Marshal(b.claims(t).Payload())
	if err != nil {
		t.Fatal(err)
	}
	ofSize := func(n int) string {
		for head := range 4 {
			for spaces := range n {
				h := goodHead + strings.Repeat(" ", head)
				p := strings.Replace(string(payload), "{", "{"+strings.Repeat(" ", spaces), 1)
				if size := base64.RawURLEncoding.EncodedLen(len(h)) + base64.RawURLEncoding.EncodedLen(len(p)) + 86 + 2; size == n {
					return craft(b.key, h, p)
				} else if size > n {
					break
				}
			}
		}
		t.Fatalf("no token of %d bytes", n)
		return ""
	}
	for _, n := range []int{4095, 4096} {
		if token := ofSize(n); len(token) != n {
			t.Fatalf("made %d bytes", len(token))
		} else if _, err := b.verifier.Verify(token, b.want); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, n := range []int{4097, 4100, 8192} {
		if _, err := b.verifier.Verify(ofSize(n), b.want); codeOf(err) != api.Unauthenticated {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestTextOfEachPart puts into each of the three parts what a lenient decoder would read the same.
// The signature is over the altered text, so that nothing but the form is wrong.
func TestTextOfEachPart(t *testing.T) {
	b := newBench(t)
	good, err := b.minter.Sign(b.claims(t))
	if err != nil {
		t.Fatal(err)
	}
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	insert := func(what string) func(string) []string {
		return func(p string) []string { return []string{what + p, p[:len(p)/2] + what + p[len(p)/2:], p + what} }
	}
	for name, variants := range map[string]func(part string) []string{
		"newline": insert("\n"), "carriage return": insert("\r"), "space": insert(" "), "tab": insert("\t"), "NUL": insert("\x00"),
		"padding": insert("="), "plus": insert("+"), "slash": insert("/"), "dot": insert("."), "full-width letter": insert("Ａ"),
		"percent": insert("%2B"),
		"spare bits": func(p string) []string {
			at := strings.IndexByte(alphabet, p[len(p)-1])
			return []string{p[:len(p)-1] + string(alphabet[at|1])}
		},
		"empty":         func(string) []string { return []string{""} },
		"one character": func(p string) []string { return []string{p + "AAA"[:(5-len(p)%4)%4]} },
	} {
		for i, which := range []string{"header", "claims", "signature"} {
			t.Run(name+"/"+which, func(t *testing.T) {
				for _, altered := range variants(strings.Split(good, ".")[i]) {
					part := strings.Split(good, ".")
					if name == "spare bits" && i < 2 { // a text whose last character has spare bits
						head, payload := goodHead, string(mustDecode(t, part[1]))
						for len(head)%3 != 1 {
							head += " "
						}
						for len(payload)%3 != 1 {
							payload += " "
						}
						part = strings.Split(craft(b.key, head, payload), ".")
						if _, err := b.verifier.Verify(strings.Join(part, "."), b.want); err != nil {
							t.Fatalf("before: %v", err)
						}
						altered = variants(part[i])[0]
					}
					if altered == part[i] {
						t.Fatal("the row alters nothing")
					}
					part[i] = altered
					if i < 2 {
						part[2] = base64.RawURLEncoding.EncodeToString(ed25519.Sign(b.key, []byte(part[0]+"."+part[1])))
					}
					if _, err := b.verifier.Verify(strings.Join(part, "."), b.want); codeOf(err) != api.Unauthenticated {
						t.Errorf("%q: got %v", altered, err)
					}
				}
			})
		}
	}
}

func mustDecode(t *testing.T, part string) []byte {
	t.Helper()
	out, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
