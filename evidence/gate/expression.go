// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cel.dev/cel-go/cel"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Bounds of one evaluation: a policy's expression is the root's, but what it walks over is the
// producer's.
const (
	expressionCost = 10_000_000      // units of CEL's cost model
	expressionTime = 2 * time.Second // wall clock, looked at between iterations
)

// Expression is the compiled CEL expression of a policy. It sees
//
//	statement  the signed in-toto statement, as in the bundle
//	cohort     name in the policy's fleet, or ""
//	now        time of the decision
//
// and is asked about admitted evidence only, so that true changes nothing and all else denies.
type Expression struct{ program cel.Program }

// CompileExpression checks the text of a policy's expression: it must be of type bool.
func CompileExpression(text string) (*Expression, error) {
	env, err := cel.NewEnv(
		cel.Variable("statement", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("cohort", cel.StringType), cel.Variable("now", cel.TimestampType),
	)
	if err != nil {
		return nil, fmt.Errorf("expression: %w", err)
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("expression: %w", err)
	}
	// dyn is left to the evaluation: a member of the statement may well be a bool.
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("expression: it is of type %s, not bool", t)
	}
	program, err := env.Program(ast, cel.CostLimit(expressionCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, fmt.Errorf("expression: %w", err)
	}
	return &Expression{program: program}, nil
}

// expressionOf compiles the policy's expression; nil without one.
func expressionOf(policy *evidence.Policy) (*Expression, error) {
	text := policy.Document().Expression
	if text == "" {
		return nil, nil
	}
	e, err := CompileExpression(text)
	if err != nil {
		return nil, &evidence.Denied{Reason: evidence.ReasonExpressionError, Detail: err.Error()}
	}
	return e, nil
}

// Decide is [evidence.Decide] with the policy's log and its expression: every step about the bundle at path,
// see [ReadBundle], which is read once. ledger is nil for a policy that demands no log.
func Decide(q evidence.Question, path string, ledger *Ledger) (evidence.Decision, error) {
	e, err := expressionOf(q.Policy)
	if err != nil {
		return evidence.Decision{}, err
	}
	b, err := ReadBundle(path, q.Depth)
	if evidence.ReasonOf(err) != "" {
		return evidence.DenyUnread(q, err), nil
	}
	if err != nil {
		return evidence.Decision{}, err
	}
	d := evidence.Decide(q, b)
	if q.Policy.Document().Log != nil {
		err = ledger.apply(&d, b, path)
	}
	if err == nil && e != nil {
		e.apply(&d, q.Now)
	}
	return d, err
}

// apply is step 18 of an admitted decision.
func (e *Expression) apply(d *evidence.Decision, now time.Time) {
	if !d.Admitted {
		return
	}
	value, err := e.evaluate(*d, now)
	if err != nil {
		d.Deny(evidence.ReasonExpressionError, oneLine(err))
		return
	}
	if !value {
		d.Deny(evidence.ReasonExpression, "it is false")
		return
	}
	d.Hold(evidence.StepExpression)
}

func (e *Expression) evaluate(d evidence.Decision, now time.Time) (bool, error) {
	statement, err := values(d.Statement())
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), expressionTime)
	defer cancel()
	out, _, err := e.program.ContextEval(ctx, map[string]any{"statement": statement, "cohort": d.Place, "now": now})
	if err != nil {
		return false, err
	}
	value, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("it is of type %s, not bool", out.Type().TypeName())
	}
	return value, nil
}

// values gives CEL the statement with integers as integers: the schema has no other numbers.
func values(st *evidence.Statement) (map[string]any, error) {
	if st == nil {
		return nil, errors.New("no statement")
	}
	text, err := strictjson.Marshal(st) // as it was signed: no null for an empty list
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		return nil, err
	}
	return m, integers(m)
}

func integers(v any) error {
	set := func(old any, put func(any)) error {
		n, ok := old.(json.Number)
		if !ok {
			return integers(old)
		}
		i, err := n.Int64()
		put(i)
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		for k, old := range v {
			if err := set(old, func(i any) { v[k] = i }); err != nil {
				return err
			}
		}
	case []any:
		for k, old := range v {
			if err := set(old, func(i any) { v[k] = i }); err != nil {
				return err
			}
		}
	}
	return nil
}
