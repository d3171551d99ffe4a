// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Result is one row of a selftest.
type Result struct {
	Expect
	Got    evidence.Reason `json:"got"`
	Detail string          `json:"detail"`
}

// Agrees says whether the gate did what the row expects.
func (r Result) Agrees() bool { return r.Got == r.Reason }

// errNoRows: a selftest over nothing would pass.
var errNoRows = errors.New("no rows found, or no row that must be admitted")

// Selftest runs the gate on every row of a corpus, without changing it.
func Selftest(dir string, catalogue evidence.Catalogue, now time.Time) ([]Result, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*", "expect.json"))
	if err != nil {
		return nil, fmt.Errorf("selftest: %w", err)
	}
	slices.Sort(names)
	var out []Result
	admitted := false
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return out, fmt.Errorf("selftest: %w", err)
		}
		var e Expect
		if err := strictjson.Unmarshal([]byte(strings.TrimSuffix(string(text), "\n")), &e, strictjson.Limits{}); err != nil {
			return out, fmt.Errorf("selftest %s: %w", name, err)
		}
		if e.Reason != "" && e.Reason.Step() < 0 {
			return out, fmt.Errorf("selftest %s: unknown reason %q", name, e.Reason)
		}
		r, err := judge(filepath.Dir(name), e, catalogue, now)
		if err != nil {
			return out, fmt.Errorf("selftest %s: %w", e.Row, err)
		}
		admitted = admitted || (e.Reason == "" && r.Agrees())
		out = append(out, r)
	}
	if !admitted {
		return out, fmt.Errorf("selftest %s: %w", dir, errNoRows)
	}
	return out, nil
}

// prove demands that the unmodified row is admitted.
func (d *draft) prove(dir string) error {
	e := Expect{Row: filepath.Base(dir), Args: []string{"--root", "root.pub", "--trust", "trust.json", "--key", "gate.key", "--state", "state", "--bundle", "bundle"}}
	r, err := judge(dir, e, d.policy.Catalogue, d.now)
	if err != nil {
		return err
	}
	if !r.Agrees() {
		return fmt.Errorf("the unmodified bundle, signed again, is denied: %s", r.Detail)
	}
	return nil
}

// judge runs the gate with a row's arguments, on a copy of its memory and without pins.
func judge(dir string, e Expect, catalogue evidence.Catalogue, now time.Time) (_ Result, err error) {
	c := gate.Config{Catalogue: catalogue, Now: now}
	for i := 0; i+1 < len(e.Args); i += 2 {
		value := filepath.Join(dir, e.Args[i+1])
		switch e.Args[i] {
		case "--root":
			c.Root = value
		case "--trust":
			c.Trust = value
		case "--key":
			c.Key = value
		case "--state":
			c.State = value
		case "--bundle":
			c.Bundles = append(c.Bundles, value)
		case "--host":
			c.Host = e.Args[i+1]
		case "--nonce":
			c.Nonce = e.Args[i+1]
		case "--log":
			c.Log = value
		case "--cohort":
			c.Cohort = e.Args[i+1]
		case "--want":
			c.Want = append(c.Want, e.Args[i+1])
		case "--image":
			c.Images = append(c.Images, e.Args[i+1])
		case "--out":
		default:
			return Result{}, fmt.Errorf("argument %s", strconv.Quote(e.Args[i]))
		}
	}
	temp, err := os.MkdirTemp("", "hallmark-selftest-")
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	// What the gate remembers is copied: a selftest changes no corpus.
	remembered, err := filepath.Glob(filepath.Join(c.State, "log-checkpoint-*"))
	if err != nil {
		return Result{}, err
	}
	for _, path := range append(remembered, filepath.Join(c.State, "rollback.json")) {
		memory, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Result{}, err
		}
		if err == nil {
			if err := os.WriteFile(filepath.Join(temp, filepath.Base(path)), memory, 0o600); err != nil {
				return Result{}, err
			}
		}
	}
	c.State = temp
	r, err := gate.Run(c)
	if err != nil {
		return Result{}, err
	}
	return Result{Expect: e, Got: r.Reason, Detail: r.Detail}, nil
}
