// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// row is t as docs/lifecycle.md shows it.
func (t transition) row() string {
	var on, do []string
	for _, e := range t.on {
		on = append(on, string(e))
	}
	for _, e := range effects {
		if t.do&e.effect != 0 {
			do = append(do, e.name)
		}
	}
	from := t.from
	if from == stateNone {
		from = "(none)"
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", from, strings.Join(on, ", "), t.to, strings.Join(do, ", "))
}

// The document shows the table that the Manager acts on, row by row and in its order, and nothing else.
func TestDocumentShowsTheLifecycle(t *testing.T) {
	document, err := os.ReadFile("../../docs/lifecycle.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(document), "| State | Event | Next state | Effects |\n| --- | --- | --- | --- |\n")
	if !found {
		t.Fatal("docs/lifecycle.md has no table")
	}
	shown, rest, _ := strings.Cut(rest, "\n\n")
	var rows []string
	for _, l := range lifecycle {
		rows = append(rows, l.row())
	}
	if want := strings.Join(rows, "\n"); shown != want {
		t.Errorf("docs/lifecycle.md shows\n%s\nand the table is\n%s", shown, want)
	}
	for _, e := range effects {
		if !strings.Contains(rest, "| "+e.name+" | ") {
			t.Errorf("docs/lifecycle.md does not explain the effect %s", e.name)
		}
	}
}

// Of one state and one event there is one row, every event and effect is used, every state but the
// last leads to the last, and nothing that is gone comes back.
func TestLifecycleIsWhole(t *testing.T) {
	used, done, next := map[event]bool{}, effect(0), map[string][]string{}
	seen := map[string]bool{}
	for _, l := range lifecycle {
		done |= l.do
		next[l.from] = append(next[l.from], l.to)
		for _, e := range l.on {
			used[e] = true
			if k := l.from + " " + string(e); seen[k] {
				t.Errorf("two rows for %q", k)
			} else {
				seen[k] = true
			}
			if l.from == stateGone && l.to != stateGone {
				t.Errorf("%s brings back what is gone", e)
			}
			if l.do&remove != 0 && l.to != stateRetiring {
				t.Errorf("%s in %s removes what is not retiring", e, l.from)
			}
		}
	}
	for _, e := range append([]event{onClaim, onAsk, onServe, onRefuse, onFail, onReplace, onReplaced, onEntomb, onRemoved, onLoad}, reasons...) {
		if !used[e] {
			t.Errorf("no row has the event %s", e)
		}
	}
	for _, e := range effects {
		if done&e.effect == 0 {
			t.Errorf("no row has the effect %s", e.name)
		}
	}
	for from := range next {
		reached, todo := map[string]bool{from: true}, []string{from}
		for len(todo) > 0 {
			for _, to := range next[todo[0]] {
				if !reached[to] {
					reached[to] = true
					todo = append(todo, to)
				}
			}
			todo = todo[1:]
		}
		if !reached[stateGone] {
			t.Errorf("nothing ends %s", from)
		}
	}
}

// Only the table changes a state: no other code of the package assigns one.
func TestOnlyTheTableChangesAState(t *testing.T) {
	set := token.NewFileSet()
	packages, err := parser.ParseDir(set, ".", func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0)
	if err != nil || packages["session"] == nil {
		t.Fatalf("parse: %v", err)
	}
	found := 0
	ast.Inspect(packages["session"], func(n ast.Node) bool {
		var assigned []ast.Expr
		switch n := n.(type) {
		case *ast.AssignStmt:
			assigned = n.Lhs
		case *ast.CompositeLit:
			if name, ok := n.Type.(*ast.Ident); ok && name.Name == "record" {
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						assigned = append(assigned, kv.Key)
					}
				}
			}
		}
		for _, a := range assigned {
			name := ""
			switch a := a.(type) {
			case *ast.SelectorExpr:
				name = a.Sel.Name
			case *ast.Ident:
				name = a.Name
			}
			if name != "State" {
				continue
			}
			found++
			if at := set.Position(a.Pos()); at.Filename != "lifecycle.go" {
				t.Errorf("%s assigns a state", at)
			}
		}
		return true
	})
	if found != 1 {
		t.Errorf("%d assignments of a state; record.step makes one", found)
	}
}
