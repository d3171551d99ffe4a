// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// What a case or a probe plants on the engine lies in the target's cgroup parent: by nothing else
// does a later sweep know it for a killed run's. So a function that makes a plant asks for the
// parent and names it.
func TestEveryPlantLiesInTheTargetsParent(t *testing.T) {
	made := 0
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			plants, asks, names := 0, false, 0
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					if !isSelector(n.Type, "oracle", "Plant") {
						return true
					}
					plants++
					for _, e := range n.Elts {
						if kv, ok := e.(*ast.KeyValueExpr); ok {
							if k, ok := kv.Key.(*ast.Ident); ok && k.Name == "CgroupParent" {
								names++
							}
						}
					}
				case *ast.AssignStmt:
					for _, l := range n.Lhs {
						if s, ok := l.(*ast.SelectorExpr); ok && s.Sel.Name == "CgroupParent" {
							names = 1 << 10 // of each in a loop
						}
					}
				case *ast.CallExpr:
					asks = asks || isSelector(n.Fun, "attack", "Parent")
				}
				return true
			})
			made += plants
			if plants > 0 && (!asks || names < plants) {
				t.Errorf("%s: a plant without the target's cgroup parent", files.Position(d.Pos()))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if made == 0 {
		t.Error("no plant was found")
	}
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg && s.Sel.Name == name
}
