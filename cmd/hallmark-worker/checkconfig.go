// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// problem is one thing that is wrong with a configuration.
type problem struct{ member, what, remedy string }

// check reads a configuration as serve does, but goes on after the first problem.
type check struct {
	cfg      worker.Config
	present  map[string]bool // by path with indices
	explain  map[string]member
	forms    map[string]form
	problems []problem
}

// bound is the index in [worker.LimitBounds] of a member of limits, or -1.
func bound(path string) int {
	name, ok := strings.CutPrefix(path, "limits.")
	return slices.IndexFunc(worker.LimitBounds(), func(b worker.LimitBound) bool { return ok && b.Name == name })
}

func bounds() map[string]int64 {
	out := map[string]int64{}
	for _, b := range worker.LimitBounds() {
		out[b.Name] = b.Default
	}
	return out
}

// checkConfig explains the file on out. The error has the exit status.
func checkConfig(path string, out io.Writer) error {
	text, err := worker.ReadConfig(path)
	if err != nil {
		return &failure{exitFailed, "the configuration cannot be read", "name a file of at most 1 MiB that this user may read", err}
	}
	c := newCheck(text)
	c.print(out, path)
	if n := len(c.problems); n > 0 {
		return &failure{exitFailed, "the configuration is not valid", "correct what is listed under Problems", fmt.Errorf("%s has %s", path, count(n))}
	}
	return nil
}

func count(n int) string {
	if n == 1 {
		return "1 problem"
	}
	return fmt.Sprintf("%d problems", n)
}

func newCheck(text []byte) *check {
	c := &check{present: map[string]bool{}, explain: map[string]member{}, forms: forms()}
	for _, m := range members() {
		c.explain[m.path] = m
	}
	var root jsontext.Value
	if err := json.Unmarshal(text, &root); err != nil { // duplicates and invalid UTF-8 too
		c.add("", "the file is not one JSON text: "+syntax(err), "correct the syntax; until then nothing else can be told")
		return c
	}
	c.walk("", root, reflect.ValueOf(&c.cfg).Elem())
	c.semantics()
	if len(c.problems) == 0 { // serve's word is the last
		if _, err := worker.ParseConfig(text); err != nil {
			c.add("", err.Error(), "correct it")
		}
	}
	return c
}

func (c *check) add(member, what, remedy string) {
	c.problems = append(c.problems, problem{member, what, remedy})
}

// syntax says where, and which rule, but quotes nothing of the file.
func syntax(err error) string {
	var e *jsontext.SyntacticError
	if !errors.As(err, &e) {
		return "it breaks a rule of strict JSON"
	}
	what := "invalid"
	if e.Err != nil && errors.Is(e.Err, jsontext.ErrDuplicateName) {
		what = "a name is there twice"
	}
	at := fmt.Sprintf("%s at byte %d", what, e.ByteOffset)
	if e.JSONPointer != "" {
		at += fmt.Sprintf(", within %d names", strings.Count(string(e.JSONPointer), "/"))
	}
	return at
}

// walk fills v from raw, member by member, and notes what does not fit.
func (c *check) walk(path string, raw jsontext.Value, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		c.walk(path, raw, v.Elem())
	case reflect.Struct:
		var members map[string]jsontext.Value
		if raw.Kind() != '{' || json.Unmarshal(raw, &members) != nil {
			c.misfit(path, "is not an object")
			return
		}
		known := fields(v.Type())
		for _, name := range slices.Sorted(maps.Keys(members)) {
			if _, ok := known[name]; !ok {
				c.unknown(path, name, slices.Sorted(maps.Keys(known)))
			}
		}
		for i := range v.NumField() {
			name, optional := tag(v.Type().Field(i))
			at := join(path, name)
			value, there := members[name]
			switch {
			case there && v.Field(i).Kind() == reflect.Pointer && value.Kind() == 'n': // as good as absent
			case there:
				c.present[at] = true
				c.walk(at, value, v.Field(i))
			case !optional:
				c.misfit(at, "is missing")
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Struct {
			c.leaf(path, raw, v)
			return
		}
		var items []jsontext.Value
		if raw.Kind() != '[' || json.Unmarshal(raw, &items) != nil {
			c.misfit(path, "is not a list")
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
		for i, item := range items {
			c.walk(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i))
		}
	default:
		c.leaf(path, raw, v)
	}
}

func (c *check) leaf(path string, raw jsontext.Value, v reflect.Value) {
	if err := strictjson.Unmarshal(raw, v.Addr().Interface(), strictjson.Limits{Bytes: 1 << 20, Depth: 8, StringBytes: 64 << 10}); err != nil {
		what := "is a value of another kind"
		switch {
		case errors.Is(err, strictjson.ErrNumber):
			what = "is no whole number within bounds"
		case errors.Is(err, strictjson.ErrEncoded):
			what = "is not canonical base64"
		case errors.Is(err, strictjson.ErrLimit):
			what = "is too long"
		}
		c.misfit(path, what)
	}
}

func (c *check) misfit(path, what string) { c.add(path, what, c.remedy(path)) }

func (c *check) remedy(path string) string {
	switch path {
	case "candidates", "admission":
		return "have candidates in qualification mode, admission in production mode, and not the other"
	case "limits.execsPerSandbox", "limits.noncesPerWorkspace":
		return fmt.Sprintf("give a whole number from %d to %d that is at most the other limit", worker.LimitBounds()[bound(path)].Min, worker.LimitBounds()[bound(path)].Max)
	}
	if i := bound(path); i >= 0 {
		return fmt.Sprintf("give a whole number from %d to %d, or leave it out", worker.LimitBounds()[i].Min, worker.LimitBounds()[i].Max)
	}
	if f, ok := c.forms[c.explain[general(path)].form]; ok {
		return f.remedy
	}
	return "correct it"
}

func (c *check) unknown(path, name string, known []string) {
	at, remedy := path, "leave it out"
	if !api.ValidID(name) { // it may be anything
		name = "a member"
	} else {
		at = join(path, name)
		if near := nearest(name, known); near != "" {
			remedy = fmt.Sprintf("write %s, or leave it out", near)
		}
	}
	if at == path {
		c.add(at, name+" with an odd name is not known", remedy)
		return
	}
	c.add(at, "is not a member of the configuration", remedy)
}

// semantics adds what serve's validation says about members that have their shape.
func (c *check) semantics() {
	misshapen := map[string]bool{}
	for _, p := range c.problems {
		misshapen[p.member] = true
	}
	for _, err := range flatten(c.cfg.Validate()) {
		text := err.Error()
		at, what := "", text
		if first, rest, ok := strings.Cut(text, " "); ok {
			if path := strings.TrimSuffix(first, ":"); c.explain[general(path)].path != "" {
				at, what = path, rest
			}
		}
		if c.covered(at, misshapen) {
			continue
		}
		c.add(at, what, c.remedy(at))
	}
}

// covered says that something within at has been reported already, or all around it.
func (c *check) covered(at string, misshapen map[string]bool) bool {
	for m := range misshapen {
		if at != "" && (m == at || strings.HasPrefix(m, at+".") || strings.HasPrefix(m, at+"[") || strings.HasPrefix(at, m+".") && m != "") {
			return true
		}
	}
	return false
}

func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range many.Unwrap() {
			out = append(out, flatten(e)...)
		}
		return out
	}
	return []error{err}
}

// general takes the indices out of a path.
func general(path string) string {
	for {
		from := strings.IndexByte(path, '[')
		if from < 0 {
			return strings.ReplaceAll(path, "\x00", "[]")
		}
		to := strings.IndexByte(path, ']')
		path = path[:from] + "\x00" + path[to+1:]
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func tag(f reflect.StructField) (name string, optional bool) {
	name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, strings.Contains(rest, "omit")
}

func fields(t reflect.Type) map[string]bool {
	out := map[string]bool{}
	for i := range t.NumField() {
		name, _ := tag(t.Field(i))
		out[name] = true
	}
	return out
}

// nearest is the known name within two edits of name, or in another case.
func nearest(name string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k
		}
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

const columns = 80

// print writes every member, then the problems.
func (c *check) print(out io.Writer, path string) {
	w := &page{out: out}
	w.line(0, path)
	if len(c.present) > 0 {
		w.line(0, "")
		c.printMembers(w, "", reflect.ValueOf(c.cfg))
	}
	w.line(0, "")
	if len(c.problems) == 0 {
		w.line(0, "No problems. What the file names on this host is checked when the worker starts.")
		return
	}
	w.line(0, fmt.Sprintf("Problems (%d):", len(c.problems)))
	for i, p := range c.problems {
		number := fmt.Sprintf("%3d. ", i+1)
		w.line(0, "")
		w.wrap(0, len(number), number+strings.TrimSpace(p.member+" "+p.what))
		w.wrap(len(number), len(number), "Remedy: "+p.remedy+".")
	}
}

func (c *check) printMembers(w *page, path string, v reflect.Value) {
	for i := range v.NumField() {
		name, _ := tag(v.Type().Field(i))
		at, f := join(path, name), v.Field(i)
		m := c.explain[general(at)]
		indent := 2 * strings.Count(at, ".")
		if path == "" && i > 0 {
			w.line(0, "")
		}
		if f.Kind() == reflect.Pointer {
			if f.IsNil() {
				w.wrap(indent, indent+2, at+" is not set: "+m.absent)
				w.wrap(indent+4, indent+4, m.meaning)
				if at == "limits" { // its defaults hold all the same
					c.printMembers(w, at, reflect.Zero(f.Type().Elem()))
				}
				continue
			}
			f = f.Elem()
		}
		switch {
		case f.Kind() == reflect.Struct:
			w.line(indent, at)
			w.wrap(indent+4, indent+4, m.meaning)
			c.printMembers(w, at, f)
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
			w.line(indent, fmt.Sprintf("%s: %d", at, f.Len()))
			w.wrap(indent+4, indent+4, m.meaning)
			for j := range f.Len() {
				c.printMembers(w, fmt.Sprintf("%s[%d]", at, j), f.Index(j))
			}
		default:
			w.wrap(indent, indent+2, at+c.value(at, m, f))
			w.wrap(indent+4, indent+4, m.meaning)
		}
	}
}

func (c *check) value(at string, m member, f reflect.Value) string {
	if !c.present[at] {
		if m.absent == "" {
			return " is missing"
		}
		return " is not set: " + m.absent
	}
	text, ok := c.forms[m.form].show(f.Interface())
	switch {
	case !ok:
		return " is set, but not shown, since it has another form"
	case text == "":
		return " = \"\""
	case m.absent != "" && text == strings.TrimPrefix(m.absent, "default "):
		return " = " + text + " (the default)"
	}
	return " = " + text
}

// page writes lines that are at most [columns] wide wherever a space allows it.
type page struct{ out io.Writer }

func (p *page) line(indent int, text string) {
	fmt.Fprintln(p.out, strings.TrimRight(strings.Repeat(" ", indent)+text, " "))
}

// wrap begins at indent and goes on at hang.
func (p *page) wrap(indent, hang int, text string) {
	lead := text[:len(text)-len(strings.TrimLeft(text, " "))]
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = lead + word
		case indent+len(line)+1+len(word) > columns:
			p.line(indent, line)
			indent, line = hang, word
		default:
			line += " " + word
		}
	}
	p.line(indent, line)
}
