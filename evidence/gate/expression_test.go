// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

func admitted(t testing.TB, w *evidencetest.World) evidence.Decision {
	t.Helper()
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	d := evidence.Decide(q, b)
	if !d.Admitted {
		t.Fatal(d.Detail)
	}
	return d
}

func world(t testing.TB) *evidencetest.World {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestExpressions(t *testing.T) {
	w := world(t)
	for _, tt := range []struct {
		text string
		want evidence.Reason
	}{
		{`true`, ""},
		{`statement.predicate.run.sequence == 7 && statement.predicateType.endsWith("/v1")`, ""},
		{`statement.predicate.waivers == []`, ""}, // an empty list, and not null
		{`statement.predicate.cases.filter(c, c.status == "pass").size() == 4`, ""},
		{`timestamp(statement.predicate.run.finishedAt) > now - duration("24h")`, ""},
		{`cohort == ""`, ""},
		{`!has(statement.predicate.run.nonce)`, ""},
		{`statement.predicate.cohort.descriptor.sandbox.platform == "kvm"`, evidence.ReasonExpression},
		{`statement.predicate.run.nonce == "x"`, evidence.ReasonExpressionError},
		{`statement.predicate.run.sequence`, evidence.ReasonExpressionError},
		{`statement.predicate.run.sequence / 0 == 1`, evidence.ReasonExpressionError},
		{`statement.predicate.run.id.matches("(((a+)+)+)+$") || true`, ""}, // RE2: no blow-up
		{strings.Repeat(`[1,2,3,4,5,6,7,8,9].all(x, `, 9) + "true" + strings.Repeat(")", 9), evidence.ReasonExpressionError},
	} {
		e, err := CompileExpression(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		d := admitted(t, w)
		e.apply(&d, w.Now)
		if d.Reason != tt.want || d.Admitted != (tt.want == "") {
			t.Errorf("%s: %q, want %q (%s)", tt.text, d.Reason, tt.want, d.Detail)
		}
	}
	for _, text := range []string{``, `1`, `"true"`, `true &&`, `unknown == 1`, `statement ||`, strings.Repeat("(", 5000)} {
		if _, err := CompileExpression(text); err == nil {
			t.Errorf("%.20q is compiled", text)
		}
	}
}

// An expression is no way back from a denial.
func TestExpressionNeverAdmits(t *testing.T) {
	w := world(t)
	e, err := CompileExpression("true")
	if err != nil {
		t.Fatal(err)
	}
	d := admitted(t, w)
	d.Deny(evidence.ReasonThreshold, "one is missing")
	e.apply(&d, w.Now)
	if d.Admitted || d.Reason != evidence.ReasonThreshold {
		t.Errorf("decision %v, %s", d.Admitted, d.Reason)
	}
	d.Deny(evidence.ReasonExpression, "later")
	d.Hold(evidence.StepExpression)
	if d.Reason != evidence.ReasonThreshold || d.Admitted || d.Steps[evidence.StepExpression-1].State == evidence.StepHeld {
		t.Error("the first denial does not stay the reason, or a step after it held")
	}
}

// FuzzExpression compiles and evaluates whatever a policy may hold: no panic, and only true leaves an
// admitted decision admitted.
func FuzzExpression(f *testing.F) {
	w := world(f)
	good := admitted(f, w)
	f.Add(`true`)
	f.Add(`statement.predicate.cases.all(c, c.attempts == 1)`)
	f.Add(`has(statement.predicate.run.nonce) ? now > timestamp("2026-01-01T00:00:00Z") : cohort != "x"`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > evidence.MaxExpression {
			return
		}
		e, err := CompileExpression(text)
		if err != nil {
			return
		}
		d := good
		d.Steps = append([]evidence.StepState(nil), good.Steps...)
		value, err := e.evaluate(d, w.Now)
		e.apply(&d, w.Now)
		if d.Admitted != (value && err == nil) {
			t.Fatalf("admitted %v, value %v, %v", d.Admitted, value, err)
		}
	})
}
