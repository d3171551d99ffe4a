// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestSecretSpawnBounds(t *testing.T) {
	s := Spawn{Argv: []string{"x"}, Timeout: time.Second, MaxOutput: 1, Secret: make(Secret, MaxSecret)}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	b := s.Encode()
	if cap(b) != len(b) {
		t.Errorf("capacity %d of %d bytes: it was moved while it grew", cap(b), len(b))
	}
	if got, err := ParseSpawn(s.Type(), b); err != nil || len(got.Secret) != MaxSecret || &got.Secret[0] != &b[4] {
		t.Errorf("%d bytes, %v", len(got.Secret), err)
	}
	if _, err := ParseSpawn(Exec, b); !errors.Is(err, ErrFrame) {
		t.Errorf("an exec with a secret: %v", err)
	}
	if s.Secret = make(Secret, MaxSecret+1); !errors.Is(s.Check(), ErrFrame) {
		t.Error("a larger secret passes")
	}
	plain := Spawn{Argv: []string{"x"}, Timeout: time.Second, MaxOutput: 1}
	if _, err := ParseSpawn(ExecSecret, append([]byte{0, 0, 0, 0}, plain.Encode()...)); !errors.Is(err, ErrFrame) {
		t.Errorf("an exec-secret without one: %v", err)
	}
	if _, err := ParseSpawn(ExecSecret, []byte{0xff, 0xff, 0xff, 0xff, 1}); !errors.Is(err, ErrFrame) {
		t.Errorf("a secret beyond the payload: %v", err)
	}
	if _, hi, ok := bounds(ExecSecret); !ok || int(hi) < len(b)-1 || hi > 2<<20 {
		t.Errorf("bound %d of the type", hi)
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	const canary = "s3cr3t-canary"
	s := Spawn{Argv: []string{"x"}, Secret: Secret(canary)}
	var b bytes.Buffer
	for _, v := range []any{s, &s, s.Secret, []Secret{s.Secret}} {
		fmt.Fprintf(&b, "%v %+v %#v %s %q %x %d ", v, v, v, v, v, v, v)
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), strings.Trim(fmt.Sprint([]byte(canary)), "[]"), "czNjcjN0"} {
		if strings.Contains(b.String(), form) {
			t.Errorf("%q is in %s", form, b.String())
		}
	}
}

// recorder keeps what it is given to write, without copying: a writer that is done has been zeroed.
type recorder struct {
	script
	seen [][]byte
	held bool // the secret passed through
}

func (r *recorder) Write(b []byte) (int, error) {
	r.held = r.held || bytes.Contains(b, []byte("s3cr3t"))
	r.seen = append(r.seen, b)
	return len(b), nil
}

func TestSentSecretIsZeroed(t *testing.T) {
	rec := &recorder{}
	c := &Client{rw: rec, calls: map[uint64]*call{}, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	go func() {
		<-ctx.Done()
		c.fail(errors.New("over"))
	}()
	s := Spawn{Argv: []string{"x"}, Timeout: time.Second, MaxOutput: 1, Secret: Secret("s3cr3t")}
	if _, err := c.Exec(ctx, s); err == nil {
		t.Fatal("an exec without an answer succeeds")
	}
	if !rec.held {
		t.Fatal("the secret was not sent")
	}
	if got := rec.seen[0]; !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("the sent frame is not zeroed")
	}
}
