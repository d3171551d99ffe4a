// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// element is any XML element, as it was read back.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

func (e element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// junitSchema is what both schemas that [junitSuite] names allow, but for timestamp and
// hostname, which only one of them has: attributes (a star: required) and children.
var junitSchema = map[string]struct{ attrs, children string }{
	"testsuite":  {"name* tests* failures* errors* skipped* time* timestamp hostname", "properties testcase"},
	"properties": {"", "property"},
	"property":   {"name* value*", ""},
	"testcase":   {"name* classname* time*", "failure skipped error system-out"},
	"failure":    {"message* type*", ""},
	"error":      {"message* type*", ""},
	"skipped":    {"message*", ""},
	"system-out": {"", ""},
}

func checkJUnit(t *testing.T, b []byte) element {
	t.Helper()
	var root element
	dec := xml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&root); err != nil {
		t.Fatalf("junit.xml cannot be read back: %v", err)
	}
	if r, bad := obeyed(string(b)); bad {
		t.Errorf("junit.xml holds %q", r)
	}
	if root.XMLName.Local != "testsuite" {
		t.Fatalf("the root is %s", root.XMLName.Local)
	}
	checkElement(t, root)
	if root.Children[0].XMLName.Local != "properties" {
		t.Error("the properties do not come first")
	}
	return root
}

func checkElement(t *testing.T, e element) {
	t.Helper()
	rule, ok := junitSchema[e.XMLName.Local]
	if !ok {
		t.Fatalf("unknown element %s", e.XMLName.Local)
	}
	allowed := strings.Fields(rule.attrs)
	for _, a := range e.Attrs {
		if !slices.Contains(allowed, a.Name.Local) && !slices.Contains(allowed, a.Name.Local+"*") {
			t.Errorf("%s has the attribute %s", e.XMLName.Local, a.Name.Local)
		}
		if a.Name.Local == "time" && !regexp.MustCompile(`^[0-9]+\.[0-9]{3}$`).MatchString(a.Value) {
			t.Errorf("time %q", a.Value)
		}
	}
	for _, name := range allowed {
		if name, required := strings.CutSuffix(name, "*"); required && !slices.ContainsFunc(e.Attrs, func(a xml.Attr) bool { return a.Name.Local == name }) {
			t.Errorf("%s lacks the attribute %s", e.XMLName.Local, name)
		}
	}
	last := 0
	for _, c := range e.Children {
		i := slices.Index(strings.Fields(rule.children), c.XMLName.Local)
		if i < last {
			t.Errorf("%s is out of place in %s", c.XMLName.Local, e.XMLName.Local)
		}
		last = i
		checkElement(t, c)
	}
}

func TestJUnit(t *testing.T) {
	r, _ := fixedReport()
	b, err := r.junit()
	if err != nil {
		t.Fatal(err)
	}
	root := checkJUnit(t, b)
	for name, want := range map[string]string{"tests": "7", "failures": "1", "errors": "2", "skipped": "3", "time": "125.000", "timestamp": "2026-11-29T22:00:00", "hostname": "localhost"} {
		if got := root.attr(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	properties := map[string]string{}
	for _, p := range root.Children[0].Children {
		properties[p.attr("name")] = p.attr("value")
	}
	for name, want := range map[string]string{"cohort": r.Cohort, "seed": "42", "tier": "full", "profiles": "baseline,quota", "procs": "2", "catalogue": r.Suite.Catalogue, "verdict": "non-conformant"} {
		if properties[name] != want {
			t.Errorf("property %s is %q, want %q", name, properties[name], want)
		}
	}
	for _, want := range []struct{ id, kind, message, text, out string }{
		{"FS-01", "", "", "", "witness hits: 2\n"},
		{"FS-02", "failure", "fail target-read", "required: What must hold.\naaaaaaaaaaaa: target-read: reading out-shadow", "witness links-planted: 4 (at least 4)\n  artifact tenant.json: 18 bytes, raw/blobs/failaa\n"},
		{"FS-03", "error", "inconclusive no-witness", "hits: 2 of at least 20", ""},
		{"PR-01", "error", "error panic", "goroutine 7", ""},
		{"PR-02", "skipped", "waived waived", "bug 12", ""},
		{"QT-01", "skipped", "not-applicable feature-not-claimed", "does not claim", ""},
		{"QT-02", "skipped", "not-run part-unavailable", "lacks", ""},
	} {
		i := slices.IndexFunc(root.Children, func(e element) bool { return strings.HasPrefix(e.attr("name"), want.id+" ") })
		if i < 0 {
			t.Fatalf("%s is missing", want.id)
		}
		kind, out := "", ""
		for _, c := range root.Children[i].Children {
			if c.XMLName.Local == "system-out" {
				out = c.Text
				continue
			}
			kind = c.XMLName.Local
			if c.attr("message") != want.message || !strings.Contains(c.Text, want.text) {
				t.Errorf("%s: message %q, text %q", want.id, c.attr("message"), c.Text)
			}
		}
		if kind != want.kind || !strings.Contains(out, want.out) {
			t.Errorf("%s is %q and says %q, want %q and %q", want.id, kind, out, want.kind, want.out)
		}
	}
}

func TestJUnitOfHostileReports(t *testing.T) {
	for name, s := range hostile {
		t.Run(name, func(t *testing.T) {
			r, _ := fixedReport()
			statuses := []Status{}
			for _, c := range r.Cases {
				statuses = append(statuses, c.Status)
			}
			poison(reflect.ValueOf(&r).Elem(), s)
			for i := range r.Cases {
				r.Cases[i].ID, r.Cases[i].Status = fmt.Sprintf("%s%d", s, i), statuses[i]
			}
			b, err := r.junit()
			if err != nil {
				t.Fatal(err)
			}
			checkJUnit(t, b)
			if len(b) > 1<<20 {
				t.Errorf("junit.xml has %d bytes", len(b))
			}
		})
	}
}
