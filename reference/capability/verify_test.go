// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

type bench struct {
	key, other ed25519.PrivateKey
	minter     *Minter
	verifier   *Verifier
	now        time.Time
	clockErr   error
	want       Want
}

func newKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{key: newKey(t), other: newKey(t), now: time.Now().Truncate(time.Second)}
	if _, ok := t.(*testing.F); ok {
		// Every process of a fuzzer must know the tokens that the others found, and the committed ones.
		b.key, b.other = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32))
		b.now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	b.want = Want{Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/" + strings.Repeat("a", 32) + "/exec", SandboxID: strings.Repeat("a", 32)}
	var err error
	b.minter, err = NewMinter(MinterConfig{Issuer: "control", KeyID: "k1", Key: b.key, Audience: "worker-1", Now: func() time.Time { return b.now }})
	if err != nil {
		t.Fatal(err)
	}
	b.verifier, err = NewVerifier(VerifierConfig{
		Issuer: "control", Audience: "worker-1", Epoch: "epoch-1",
		Keys: []Key{{"k1", b.key.Public().(ed25519.PublicKey)}, {"k2", b.other.Public().(ed25519.PublicKey)}},
		Now:  func() (time.Time, error) { return b.now, b.clockErr },
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) claims(t testing.TB) Claims {
	t.Helper()
	c, err := b.minter.Claims(Grant{Op: b.want.Op, Method: b.want.Method, Target: b.want.Target, Body: []byte("{}"),
		WorkspaceID: "ws", SandboxID: b.want.SandboxID, Epoch: "epoch-1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// object returns the payload of c as a map, for claims that the type cannot hold.
func object(t testing.TB, c Claims) map[string]any {
	t.Helper()
	raw, err := json.Marshal(c.Payload())
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	m["iat"], m["exp"] = c.IssuedAt, c.ExpiresAt
	return m
}

// craft signs any header and payload text with key.
func craft(key ed25519.PrivateKey, head, payload string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text)))
}

const goodHead = `{"alg":"EdDSA","kid":"k1","typ":"` + TypeCapability + `"}`

func codeOf(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestVerifyAccepts(t *testing.T) {
	b := newBench(t)
	good := b.claims(t)
	sign := func(c Claims) string {
		s, err := b.minter.Sign(c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("own claims", func(t *testing.T) {
		got, err := b.verifier.Verify(sign(good), b.want)
		if err != nil || got != good {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("second key during rotation", func(t *testing.T) {
		s, err := Sign(b.other, "k2", TypeCapability, good.Payload())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.verifier.Verify(s, b.want); err != nil {
			t.Error(err)
		}
	})
	t.Run("five minutes", func(t *testing.T) {
		c := good
		c.ExpiresAt = c.IssuedAt + 300
		if _, err := b.verifier.Verify(sign(c), b.want); err != nil {
			t.Error(err)
		}
	})
	t.Run("iat ahead within the leeway", func(t *testing.T) {
		c := good
		c.IssuedAt, c.ExpiresAt = c.IssuedAt+25, c.ExpiresAt+25
		if _, err := b.verifier.Verify(sign(c), b.want); err != nil {
			t.Error(err)
		}
	})
	t.Run("on a workspace", func(t *testing.T) {
		c := good
		c.Op, c.SandboxID, c.Target = api.OpCreate, "", api.TargetDigest("POST", "/v1/sandboxes")
		if _, err := b.verifier.Verify(sign(c), Want{Op: api.OpCreate, Method: "POST", Target: "/v1/sandboxes"}); err != nil {
			t.Error(err)
		}
	})
	t.Run("health with a challenge", func(t *testing.T) {
		s, want := b.health(t, nil)
		got, err := b.verifier.Verify(s, want)
		if err != nil || len(got.Challenge) < api.MinNonceChars || got.WorkspaceID != "" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// health mints a health token whose claims alter may change as an object.
func (b *bench) health(t testing.TB, alter func(map[string]any)) (string, Want) {
	t.Helper()
	challenge, err := Random()
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.minter.Claims(Grant{Op: api.OpHealth, Method: "GET", Target: "/v1/health", Challenge: challenge})
	if err != nil {
		t.Fatal(err)
	}
	m := object(t, c)
	if alter != nil {
		alter(m)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return craft(b.key, goodHead, string(raw)), Want{Op: api.OpHealth, Method: "GET", Target: "/v1/health"}
}

// TestVerifyRefuses has one subtest for each refusal; each alters one thing of a token that
// passes unaltered.
func TestVerifyRefuses(t *testing.T) {
	type row struct {
		name  string
		code  api.Code
		alter func(b *bench, m map[string]any) (head string, key ed25519.PrivateKey, want Want)
	}
	set := func(name string, v any) func(*bench, map[string]any) (string, ed25519.PrivateKey, Want) {
		return func(b *bench, m map[string]any) (string, ed25519.PrivateKey, Want) {
			if v == nil {
				delete(m, name)
			} else {
				m[name] = v
			}
			return goodHead, b.key, b.want
		}
	}
	head := func(h string) func(*bench, map[string]any) (string, ed25519.PrivateKey, Want) {
		return func(b *bench, m map[string]any) (string, ed25519.PrivateKey, Want) { return h, b.key, b.want }
	}
	want := func(f func(*Want)) func(*bench, map[string]any) (string, ed25519.PrivateKey, Want) {
		return func(b *bench, m map[string]any) (string, ed25519.PrivateKey, Want) {
			w := b.want
			f(&w)
			return goodHead, b.key, w
		}
	}
	times := func(iat, exp int64) func(*bench, map[string]any) (string, ed25519.PrivateKey, Want) {
		return func(b *bench, m map[string]any) (string, ed25519.PrivateKey, Want) {
			m["iat"], m["exp"] = b.now.Unix()+iat, b.now.Unix()+exp
			return goodHead, b.key, b.want
		}
	}
	typ := TypeCapability
	rows := []row{
		{"another issuer", api.Unauthenticated, set("iss", "other")},
		{"another audience", api.Unauthenticated, set("aud", "worker-2")},
		{"audience as a list", api.Unauthenticated, set("aud", []string{"worker-1"})},
		{"another operation", api.Unauthenticated, set("op", "read")},
		{"another sandbox", api.Unauthenticated, set("sandboxId", strings.Repeat("b", 32))},
		{"target of another request", api.Unauthenticated, set("target", api.TargetDigest("POST", "/v1/sandboxes"))},
		{"malformed digest", api.Unauthenticated, set("digest", "sha256:0")},
		{"another epoch", api.Unauthenticated, set("epoch", "epoch-0")},
		{"no epoch", api.Unauthenticated, set("epoch", nil)},
		{"empty epoch", api.Unauthenticated, set("epoch", "")},
		{"no sub", api.Unauthenticated, set("sub", nil)},
		{"malformed sub", api.Unauthenticated, set("sub", "../ws")},
		{"no sandboxId", api.Unauthenticated, set("sandboxId", nil)},
		{"no iss", api.Unauthenticated, set("iss", nil)},
		{"no aud", api.Unauthenticated, set("aud", nil)},
		{"no op", api.Unauthenticated, set("op", nil)},
		{"no digest", api.Unauthenticated, set("digest", nil)},
		{"no target", api.Unauthenticated, set("target", nil)},
		{"no iat", api.Unauthenticated, set("iat", nil)},
		{"no exp", api.Unauthenticated, set("exp", nil)},
		{"no jti", api.Unauthenticated, set("jti", nil)},
		{"short jti", api.Unauthenticated, set("jti", "abc")},
		{"jti with a newline", api.Unauthenticated, set("jti", strings.Repeat("a", 30)+"\n")},
		{"extra claim", api.Unauthenticated, set("nbf", 1)},
		{"challenge outside health", api.Unauthenticated, set("challenge", strings.Repeat("a", 32))},
		{"case variant claim", api.Unauthenticated, set("Sub", "other")},
		{"exp as a float", api.Unauthenticated, set("exp", 1e300)},
		{"exp as a string", api.Unauthenticated, set("exp", "9999999999")},
		{"expired", api.CapabilityExpired, times(-60, -1)},
		{"expires now", api.CapabilityExpired, times(-60, 0)},
		{"issued ahead", api.CapabilityExpired, times(31, 60)},
		{"lifetime above five minutes", api.Unauthenticated, times(0, 301)},
		{"ends before it begins", api.Unauthenticated, times(10, 5)},
		{"method differs", api.Unauthenticated, want(func(w *Want) { w.Method = "PUT" })},
		{"query added", api.Unauthenticated, want(func(w *Want) { w.Target += "?x=1" })},
		{"for a workspace operation", api.Unauthenticated, want(func(w *Want) { w.Op, w.SandboxID = api.OpCreate, "" })},
		{"for health", api.Unauthenticated, want(func(w *Want) { w.Op, w.SandboxID = api.OpHealth, "" })},
		{"unknown kid", api.Unauthenticated, head(`{"alg":"EdDSA","kid":"k3","typ":"` + typ + `"}`)},
		{"kid of the other key", api.Unauthenticated, head(`{"alg":"EdDSA","kid":"k2","typ":"` + typ + `"}`)},
		{"no kid", api.Unauthenticated, head(`{"alg":"EdDSA","typ":"` + typ + `"}`)},
		{"kid as a number", api.Unauthenticated, head(`{"alg":"EdDSA","kid":1,"typ":"` + typ + `"}`)},
		{"no typ", api.Unauthenticated, head(`{"alg":"EdDSA","kid":"k1"}`)},
		{"another typ", api.Unauthenticated, head(`{"alg":"EdDSA","kid":"k1","typ":"JWT"}`)},
		{"receipt typ", api.Unauthenticated, head(`{"alg":"EdDSA","kid":"k1","typ":"` + TypeReceipt + `"}`)},
		{"crit", api.Unauthenticated, head(`{"alg":"EdDSA","kid":"k1","typ":"` + typ + `","crit":["exp"]}`)},
		{"jwk", api.Unauthenticated, head(`{"alg":"EdDSA","kid":"k1","typ":"` + typ + `","jwk":{}}`)},
		{"duplicate alg", api.Unauthenticated, head(`{"alg":"none","alg":"EdDSA","kid":"k1","typ":"` + typ + `"}`)},
		{"duplicate kid", api.Unauthenticated, head(`{"kid":"k2","alg":"EdDSA","kid":"k1","typ":"` + typ + `"}`)},
		{"alg case variant", api.Unauthenticated, head(`{"Alg":"EdDSA","alg":"EdDSA","kid":"k1","typ":"` + typ + `"}`)},
		{"alg none", api.Unauthenticated, head(`{"alg":"none","kid":"k1","typ":"` + typ + `"}`)},
		{"alg HS256", api.Unauthenticated, head(`{"alg":"HS256","kid":"k1","typ":"` + typ + `"}`)},
		{"alg in lower case", api.Unauthenticated, head(`{"alg":"eddsa","kid":"k1","typ":"` + typ + `"}`)},
		{"trailing data in the header", api.Unauthenticated, head(goodHead + "{}")},
		{"a stranger's key", api.Unauthenticated, func(b *bench, m map[string]any) (string, ed25519.PrivateKey, Want) {
			_, k, _ := ed25519.GenerateKey(rand.Reader)
			return goodHead, k, b.want
		}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			b := newBench(t)
			m := object(t, b.claims(t))
			raw, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.verifier.Verify(craft(b.key, goodHead, string(raw)), b.want); err != nil {
				t.Fatalf("the unaltered token is refused: %v", err)
			}
			before := maps.Clone(m)
			h, key, w := r.alter(b, m)
			if raw, err = json.Marshal(m); err != nil {
				t.Fatal(err)
			}
			if h == goodHead && key.Equal(b.key) && w == b.want && maps.EqualFunc(before, m, func(x, y any) bool {
				a, _ := json.Marshal(x)
				c, _ := json.Marshal(y)
				return string(a) == string(c)
			}) {
				t.Fatal("the row alters nothing")
			}
			got, err := b.verifier.Verify(craft(key, h, string(raw)), w)
			if codeOf(err) != r.code || got != (Claims{}) {
				t.Errorf("got %+v, %v; want %s", got, err, r.code)
			}
		})
	}
}

// TestVerifyRefusesTexts has what is not a matter of claims: the compact text itself.
func TestVerifyRefusesTexts(t *testing.T) {
	b := newBench(t)
	c := b.claims(t)
	good, err := b.minter.Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(c.Payload())
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Split(good, ".")
	mac := func() string {
		h := `{"alg":"HS256","kid":"k1","typ":"` + TypeCapability + `"}`
		text := base64.RawURLEncoding.EncodeToString([]byte(h)) + "." + part[1]
		m := hmac.New(sha256.New, b.key.Public().(ed25519.PublicKey))
		m.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
	}()
	sig := []byte(part[2])
	// The last of 86 characters carries two bits; a set spare bit decodes to the same bytes.
	spare := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", sig[85])
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	sig[85] = alphabet[spare|1]
	for name, token := range map[string]string{
		"empty":                 "",
		"two parts":             part[0] + "." + part[1],
		"four parts":            good + ".",
		"empty signature":       part[0] + "." + part[1] + ".",
		"newline":               part[0] + "." + part[1] + ".\n" + part[2],
		"trailing space":        good + " ",
		"padding":               part[0] + "=." + part[1] + "." + part[2],
		"standard alphabet":     part[0] + "." + part[1] + "+." + part[2],
		"spare bits":            part[0] + "." + part[1] + "." + string(sig),
		"above 4 KiB":           craft(b.key, goodHead, strings.Replace(string(raw), "{", "{"+strings.Repeat(" ", 4096), 1)),
		"flipped signature":     part[0] + "." + part[1] + "." + strings.ToUpper(part[2][:10]) + part[2][10:],
		"MAC with public key":   mac,
		"duplicate claim":       craft(b.key, goodHead, strings.Replace(string(raw), "{", `{"sub":"other",`, 1)),
		"BOM before the claims": craft(b.key, goodHead, "\ufeff"+string(raw)),
		"second value":          craft(b.key, goodHead, string(raw)+"{}"),
		"null claim":            craft(b.key, goodHead, strings.Replace(string(raw), `"sub":"ws"`, `"sub":null`, 1)),
		"1.0 for an integer":    craft(b.key, goodHead, strings.Replace(string(raw), `,"jti"`, `.0,"jti"`, 1)),
		"array of claims":       craft(b.key, goodHead, "["+string(raw)+"]"),
	} {
		t.Run(name, func(t *testing.T) {
			if token == good {
				t.Fatal("the row alters nothing")
			}
			if _, err := b.verifier.Verify(token, b.want); codeOf(err) != api.Unauthenticated {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("stepped clock", func(t *testing.T) {
		b.clockErr = ErrClock
		if _, err := b.verifier.Verify(good, b.want); codeOf(err) != api.Unavailable {
			t.Errorf("got %v", err)
		}
	})
}

func TestHealthTokenRefusals(t *testing.T) {
	for name, alter := range map[string]func(map[string]any){
		"with an epoch":       func(m map[string]any) { m["epoch"] = "epoch-1" },
		"with an empty epoch": func(m map[string]any) { m["epoch"] = "" },
		"with a sub":          func(m map[string]any) { m["sub"] = "ws" },
		"with a sandboxId":    func(m map[string]any) { m["sandboxId"] = strings.Repeat("a", 32) },
		"no challenge":        func(m map[string]any) { delete(m, "challenge") },
		"short challenge":     func(m map[string]any) { m["challenge"] = "abc" },
		"long challenge":      func(m map[string]any) { m["challenge"] = strings.Repeat("a", 129) },
		"another target":      func(m map[string]any) { m["target"] = api.TargetDigest("GET", "/v1/healthz") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			token, want := b.health(t, nil)
			if _, err := b.verifier.Verify(token, want); err != nil {
				t.Fatalf("the unaltered token is refused: %v", err)
			}
			token, want = b.health(t, alter)
			if _, err := b.verifier.Verify(token, want); codeOf(err) != api.Unauthenticated {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestNewVerifierRefusesNothingToCheck(t *testing.T) {
	b := newBench(t)
	good := b.verifier.cfg
	for name, alter := range map[string]func(*VerifierConfig){
		"no keys":     func(c *VerifierConfig) { c.Keys = nil },
		"three keys":  func(c *VerifierConfig) { c.Keys = append(c.Keys, Key{"k3", newKey(t).Public().(ed25519.PublicKey)}) },
		"one id":      func(c *VerifierConfig) { c.Keys = []Key{c.Keys[0], {c.Keys[0].ID, c.Keys[1].Public}} },
		"one key":     func(c *VerifierConfig) { c.Keys = []Key{c.Keys[0], {"k9", c.Keys[0].Public}} },
		"short key":   func(c *VerifierConfig) { c.Keys = []Key{{"k1", make([]byte, 31)}} },
		"no issuer":   func(c *VerifierConfig) { c.Issuer = "" },
		"no audience": func(c *VerifierConfig) { c.Audience = "" },
		"no epoch":    func(c *VerifierConfig) { c.Epoch = "" },
		"no clock":    func(c *VerifierConfig) { c.Now = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			c.Keys = append([]Key{}, good.Keys...)
			alter(&c)
			if _, err := NewVerifier(c); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// FuzzVerify: whatever passes is, part by part, the text that its claims sign again.
func FuzzVerify(f *testing.F) {
	b := newBench(f)
	good, err := b.minter.Sign(b.claims(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(strings.Replace(good, ".", "..", 1))
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := b.verifier.Verify(token, b.want)
		if err != nil {
			if !codeOf(err).Known() {
				t.Errorf("code outside the union: %v", err)
			}
			return
		}
		if again, err := b.minter.Sign(c); err != nil || again != token {
			t.Errorf("accepted %q, which is not what it says", token)
		}
	})
}

// FuzzSigned puts any header and any claims below a good signature. What passes is for exactly this
// request, within its bounds, and by the letter: a second reader, built on the standard library,
// finds the three members of the header, every claim once, and no other.
func FuzzSigned(f *testing.F) {
	b := newBench(f)
	text, err := b.minter.Sign(b.claims(f))
	if err != nil {
		f.Fatal(err)
	}
	parts := strings.Split(text, ".")
	h, herr := base64.RawURLEncoding.DecodeString(parts[0])
	p, perr := base64.RawURLEncoding.DecodeString(parts[1])
	if herr != nil || perr != nil {
		f.Fatal(herr, perr)
	}
	f.Add(string(h), string(p))
	f.Add(strings.Replace(string(h), "{", `{"crit":["x"],`, 1), string(p))
	f.Add(string(h), strings.Replace(string(p), "{", `{"exp":99999999999,`, 1))
	f.Add(string(h), strings.Replace(string(p), `"sub"`, `"Sub"`, 1))
	members := func(t *testing.T, text string) map[string]int {
		t.Helper()
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		seen := map[string]int{}
		for i := 0; ; i++ {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				return seen
			}
			if err != nil {
				t.Fatalf("accepted %q: %v", text, err)
			}
			if name, ok := tok.(string); ok && i%2 == 1 { // after the brace, names and values take turns
				seen[name]++
			}
		}
	}
	f.Fuzz(func(t *testing.T, header, payload string) {
		text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
		sig := ed25519.Sign(b.minter.cfg.Key, []byte(text))
		c, err := b.verifier.Verify(text+"."+base64.RawURLEncoding.EncodeToString(sig), b.want)
		if err != nil {
			if !codeOf(err).Known() {
				t.Errorf("code outside the union: %v", err)
			}
			return
		}
		if got, want := members(t, header), (map[string]int{"alg": 1, "kid": 1, "typ": 1}); !maps.Equal(got, want) {
			t.Errorf("accepted a header with %v", got)
		}
		names := map[string]int{"iss": 1, "aud": 1, "sub": 1, "op": 1, "sandboxId": 1, "digest": 1, "target": 1, "epoch": 1, "iat": 1, "exp": 1, "jti": 1}
		if got := members(t, payload); !maps.Equal(got, names) {
			t.Errorf("accepted claims with %v", got)
		}
		cfg := b.verifier.cfg
		if c.Issuer != cfg.Issuer || c.Audience != cfg.Audience || c.Epoch != cfg.Epoch || c.Op != b.want.Op || c.SandboxID != b.want.SandboxID ||
			c.Target != api.TargetDigest(b.want.Method, b.want.Target) || c.ExpiresAt-c.IssuedAt > api.MaxTokenSeconds || c.ExpiresAt <= c.IssuedAt {
			t.Errorf("accepted %+v", c)
		}
	})
}
