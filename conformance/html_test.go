// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// fixedReport has a case of every status, two images, and artifacts of every kind.
func fixedReport() (Report, fs.FS) {
	const a, b = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	files := fstest.MapFS{}
	file := func(name, role, path, body string) ReportArtifact {
		files[path] = &fstest.MapFile{Data: []byte(body)}
		return ReportArtifact{Name: name, Role: role, MediaType: mediaText, Path: path, Digest: evidence.Digest([]byte(body)), Size: int64(len(body))}
	}
	execution := func(image string, s Status, failed ...ReportFailure) ReportExecution {
		e := ReportExecution{Execution: Execution{
			Workload: image, Status: s, Failures: []string{}, DurationMs: 1200, Seed: 7, Witness: map[string]int64{"links-planted": 4, "hits": 2}, Need: map[string]int64{"links-planted": 4},
			Observations: map[string]json.RawMessage{"codes": json.RawMessage(`{"write":"PATH_UNSAFE","tries":3}`), "kernel": json.RawMessage(`"4.4.0"`)},
		}, Failed: append([]ReportFailure{}, failed...), Artifacts: []ReportArtifact{file("tenant.json", evidence.ArtifactOracle, "raw/blobs/"+string(s)+image[7:9], `{"attack":"links"}`)}}
		for _, f := range failed {
			e.Failures = append(e.Failures, f.Reason+": "+f.Text)
		}
		return e
	}
	mk := func(id, title string, s Status, reason, text string, ms int64, ran ...ReportExecution) ReportCase {
		return ReportCase{
			ID: id, Title: title, Tier: Full, Revision: 2, Status: s, Reason: reason, Text: text, Attempts: 1, StartedAt: "2026-11-29T22:00:10Z", DurationMs: ms,
			Mutants: []string{"m01"}, Kills: []ReportKill{{"m01", "target-read"}}, Workloads: append([]ReportExecution{}, ran...),
			Requirement: "What must hold.", Threat: "What a tenant gains.", Attack: "What it does.", Witness: "What is counted (at least 4).", Oracle: "How it is seen from outside.", Precedent: "CVE-2024-28185",
			Features: []Feature{FeatureExec, FeatureFiles}, Needs: []Part{PartWorkspacePath}, Oracles: []Oracle{OracleTreeHash}, PerImage: true, Control: true, Exclusive: s == Fail, TimeoutMs: 30_000,
		}
	}
	short := execution(a, Inconclusive)
	short.Need["hits"] = 20
	r := Report{
		Schema: ReportSchema, Verdict: evidence.NonConformant, Cohort: a, RunID: "0123456789abcdef", Seed: 42, Tier: Full, Procs: 2, Profiles: []string{"baseline", "quota"},
		Reasons:  []string{"FS-02 case-failed: target-read", "FS-03 case-inconclusive: no-witness", "claim-absent: quota is claimed and absent"},
		Findings: []evidence.Finding{{Case: "FS-02", Code: "case-failed", Text: "target-read"}, {Case: "FS-03", Code: "case-inconclusive", Text: "no-witness"}, {Code: "claim-absent", Text: "quota is claimed and absent"}},
		CohortFacts: &CohortFacts{Arch: "amd64", Kernel: "6.18.0", KernelBuild: "#1 SMP", CgroupMode: "v2", Engine: "28.5.2", StorageDriver: "overlay2", ImageStore: "classic", Sandbox: "release-20260701", SandboxDigest: b,
			SandboxArgs: []string{"--platform=systrap"}, Platform: "systrap", Quota: "loop", Filesystem: "ext4", Capabilities: map[string]string{"sentry.openat2": "ENOSYS", "sentry.pidfd": "yes"}},
		Command: []string{"hallmark", "run", "--cohort", "my cohort.yaml", "--seed=42"}, StartedAt: "2026-11-29T22:00:00Z", FinishedAt: "2026-11-29T22:02:05Z",
		Suite:     ReportSuite{Version: "0.1.0", Commit: "abcdef", TreeState: "clean", CatalogueID: "list-1", Catalogue: b},
		Target:    &TargetRecord{Driver: "api", Mode: "qualification", Version: "hallmark.worker.v1", WorkerID: "suite-1", Claims: []string{"exec", "quota", "reconcile"}, Parts: []string{string(PartCgroup)}, CohortID: a, Digests: map[string]string{"worker": a}},
		Features:  []FeatureRecord{{FeatureExec, true, Present, "a command ran"}, {FeatureQuota, true, Absent, "4 GiB were written"}, {FeatureCreds, false, Present, ""}, {FeatureOpenat2, false, Absent, ""}},
		Workloads: []string{a, b}, Images: []ReportImage{{"fixture/busybox:1", a}, {"fixture/static:1", b}},
		Cases: []ReportCase{
			mk("FS-01", "Lexical traversal", Pass, "", "", 400, execution(a, Pass), execution(b, Pass)),
			mk("FS-02", "Leaf symlink", Fail, "target-read", "reading out-shadow returned 1,203 bytes", 2400,
				execution(a, Fail, ReportFailure{"target-read", "reading out-shadow returned 1,203 bytes"}, ReportFailure{"target-read", "reading out-relative returned the canary"}, ReportFailure{"target-changed", "the canary has other bytes"}),
				execution(b, Fail, ReportFailure{"target-read", "reading out-shadow returned 1,203 bytes"})),
			mk("FS-03", "Ancestor swap", Inconclusive, "no-witness", "hits: 2 of at least 20", 9000, short),
			mk("PR-01", "Fork bomb", Errored, "panic", "panic: index out of range\ngoroutine 7 [running]:\nmain.main()", 70_000, execution(a, Errored)),
			mk("PR-02", "Thread bomb", Waived, "waived", "bug 12, until 2027-01-01", 100),
			mk("QT-01", "Byte fill", NotApplicable, "feature-not-claimed", "the target does not claim quota", 1),
			mk("QT-02", "Inode fill", NotRun, "part-unavailable", "the target lacks observer.cgroup", 1),
		},
		Oracles:     []OracleRecord{{OracleTreeHash, true, "", map[string]int64{"planted-found": 4}}, {OracleMemory, false, "no-witness: the load was not seen", map[string]int64{}}},
		Waived:      []string{"PR-02"},
		Limitations: []string{"Shows what these cases observed."}, Unsigned: "no evidence was asked for",
		Artifacts: []ReportArtifact{
			file("suite.log", evidence.ArtifactLog, "raw/child.log", "started\n\x1b[31mred\x1b[0m\nended\n"), file("target/tape.jsonl", evidence.ArtifactTape, "raw/target/tape.jsonl", strings.Repeat("{\"method\":\"GET\"}\n", 8000)),
			file("core", "core", "raw/core", "\x7fELF\x00\x01\x02"), file("worker.stderr", "target-document", "raw/target/worker.stderr", ""),
			{Name: "gone.json", Role: "setup", Path: "raw/gone.json", Digest: a, Size: 10},
		},
	}
	for _, c := range r.Cases {
		count(&r.Counts, c.Status)
	}
	r.Families = families(r.Cases, map[string]string{"FS": "filesystem confinement", "PR": "process lifetime"})
	return r, files
}

func render(t *testing.T, r Report, dir fs.FS) []byte {
	t.Helper()
	page, err := r.html(dir)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func TestPageOfAFixedReport(t *testing.T) {
	r, dir := fixedReport()
	page := render(t, r, dir)
	checkPage(t, r, page)
	golden := filepath.Join("testdata", "report.golden.html")
	// The artifacts of the fixed report make most of the page, and are tested elsewhere.
	short := bytes.ReplaceAll(page, []byte(strings.Repeat("{&#34;method&#34;:&#34;GET&#34;}\n", 3800)), []byte("[3,800 lines]\n"))
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(golden, short, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(short, want) {
		t.Errorf("the page differs from %s (rewrite with -update and look at it)", golden)
	}
}

// What a reader looks for is on the page, in the order of its importance.
func TestPageAnswersItsQuestions(t *testing.T) {
	r, dir := fixedReport()
	text := visible(t, render(t, r, dir))
	at := 0
	for _, want := range []string{
		"✗ Non-conformant", "FS-02 failed: something that must hold was seen not to hold.", "hallmark.worker.v1 (suite-1) through the api driver",
		"sandbox release-20260701 (systrap), kernel 6.18.0, engine 28.5.2", "tier full, profiles baseline, quota", "unsigned: no evidence was asked for",
		"What this does not say", "Shows what these cases observed.", "Why", "claim-absent: quota is claimed and absent",
		"What failed", "✗ fail FS-02 Leaf symlink", "There to catch mutant m01", "What must hold.", "target-read in every image", "reading out-shadow returned 1,203 bytes",
		"target-read in busybox", "reading out-relative returned the canary", "target-changed in busybox", "Run it alone", "--case=FS-02",
		"What proves nothing", "? inconclusive FS-03", "hits: 2 of at least 20", "✗ 2 too few", "! error PR-01", "goroutine 7",
		"Families", "FS filesystem confinement", "✓ 1 pass ✗ 1 fail ? 1 inconclusive", "✓ present a command ran", "✗ absent 4 GiB were written", "! present, unclaimed", "reconcile yes – not looked at",
		"sentry.openat2", "ENOSYS", "✓ armed planted-found 4", "✗ not armed no-witness: the load was not seen",
		"FS-01", "~ waived", "bug 12, until 2027-01-01", "PR-01", "1m10s", "Seed 42", "Processes 2", "list-1", "'my cohort.yaml'",
		"suite.log", `\x1b[31mred`, "cut: the first 65,536 of 136,000 bytes", "not shown: it is not text", "worker.stderr 0 bytes, empty", "not shown: it cannot be read",
	} {
		i := strings.Index(text[at:], want)
		if i < 0 {
			t.Fatalf("after %q the page does not say %q:\n%s", text[max(0, at-60):at], want, text[at:min(len(text), at+600)])
		}
		at += i
	}
	missing := func(id string) evidence.Finding {
		return evidence.Finding{Case: id, Code: "case-missing", Text: "required and absent"}
	}
	r.Verdict, r.Findings = evidence.Incomplete, []evidence.Finding{missing("QT-01"), missing("QT-02"), missing("ZZ-01")}
	r.Reasons = []string{"the run has no seal", "QT-01 case-missing: required and absent", "QT-02 case-missing: required and absent", "ZZ-01 case-missing: required and absent"}
	if text := visible(t, render(t, r, dir)); !strings.Contains(text, "This run shows nothing about the whole: the run has no seal, and 3 more reasons. What was seen all the same: FS-02 failed.") ||
		!strings.Contains(text, "Why it is incomplete the run has no seal case-missing: required and absent: QT-01, QT-02, ZZ-01") {
		t.Errorf("an incomplete run is not told: %.900s", text)
	}
	r.Interrupted = true
	if text := visible(t, render(t, r, dir)); !strings.Contains(text, "The run was interrupted. It shows nothing about the whole, and nothing was signed. What was seen") {
		t.Errorf("an interrupted run is not told: %.600s", text)
	}
	r.Verdict, r.Reasons = evidence.Conformant, nil
	if text := visible(t, render(t, r, dir)); !strings.Contains(text, "Every case that the profiles baseline and quota require passed, with its witnesses seen and its oracles armed: 1 of 7 on 2 images.") {
		t.Errorf("a conformant run is not told: %.600s", text)
	}
}

// A report of a target that was never opened has almost nothing.
func TestPageOfAnEmptyReport(t *testing.T) {
	r := Report{Verdict: evidence.Incomplete}
	page := render(t, r, fstest.MapFS{})
	checkPage(t, r, page)
	if text := visible(t, page); !strings.Contains(text, "The target was not opened and armed") || !strings.Contains(text, "no reason is recorded") {
		t.Errorf("%s", text)
	}
}

// Whatever stands in a report, the page shows it and obeys none of it.
func TestPageObeysNothing(t *testing.T) {
	for name, s := range hostile {
		t.Run(name, func(t *testing.T) {
			r, _ := fixedReport()
			poison(reflect.ValueOf(&r).Elem(), s)
			r.Verdict = evidence.NonConformant
			for i := range r.Cases { // no two ids are the same, see [Suite.Check]
				r.Cases[i].ID = fmt.Sprintf("%s%d", s, i)
			}
			r.Families = families(r.Cases, map[string]string{family(s): s})
			dir := fstest.MapFS{}
			for i := range r.Artifacts {
				r.Artifacts[i].Path, r.Artifacts[i].Size = fmt.Sprintf("raw/%d", i), int64(len(s))
				dir[r.Artifacts[i].Path] = &fstest.MapFile{Data: []byte(s)}
			}
			page := render(t, r, dir)
			checkPage(t, r, page)
			if len(page) > 6<<20 {
				t.Errorf("the page has %d bytes", len(page))
			}
		})
	}
}

// poison puts s into every string below v, keys of maps included.
func poison(v reflect.Value, s string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			poison(v.Elem(), s)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			poison(v.Field(i), s)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			b, _ := json.Marshal(s) // of a string: cannot fail
			v.SetBytes(b)
			return
		}
		for i := range v.Len() {
			poison(v.Index(i), s)
		}
	case reflect.Map:
		out := reflect.MakeMap(v.Type())
		for i, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			poison(value, s)
			out.SetMapIndex(reflect.ValueOf(fmt.Sprintf("%s%d", s, i)).Convert(v.Type().Key()), value)
		}
		v.Set(out)
	case reflect.String:
		v.SetString(s)
	}
}

// elements are all that the page consists of; none of them fetches, runs or sends anything.
var elements = []atom.Atom{
	atom.Html, atom.Head, atom.Meta, atom.Title, atom.Style, atom.Body, atom.Div, atom.Header, atom.Main, atom.Footer, atom.Nav, atom.Section, atom.Article,
	atom.H1, atom.H2, atom.H3, atom.H4, atom.P, atom.Ul, atom.Li, atom.Dl, atom.Dt, atom.Dd, atom.Table, atom.Caption, atom.Thead, atom.Tbody, atom.Tr, atom.Th, atom.Td,
	atom.Details, atom.Summary, atom.Pre, atom.Code, atom.Span, atom.Bdi, atom.B, atom.Strong, atom.Br, atom.A, atom.Time, atom.Svg,
}

var attributes = []string{
	"lang", "dir", "charset", "http-equiv", "content", "name", "class", "id", "href", "scope", "datetime",
	"role", "tabindex", "aria-hidden", "aria-label", "aria-labelledby", "viewbox", "viewBox", "preserveaspectratio", "preserveAspectRatio", "focusable", "x", "y", "width", "height",
}

// checkPage checks what holds for every page, whatever its report.
func checkPage(t *testing.T, r Report, page []byte) {
	t.Helper()
	if r, bad := obeyed(string(page)); bad {
		t.Errorf("the page holds %q", r)
	}
	doc, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	ids, links := map[string]*html.Node{}, []string{}
	level, firsts := 0, 0
	policy, title, style := "", "", ""
	for n := range doc.Descendants() {
		if n.Type == html.CommentNode {
			t.Errorf("a comment: %.60q", n.Data)
		}
		if n.Type != html.ElementNode {
			continue
		}
		if n.DataAtom != 0 && !slices.Contains(elements, n.DataAtom) || n.DataAtom == 0 && n.Data != "rect" {
			t.Errorf("unexpected element %.60q", n.Data)
		}
		for _, a := range n.Attr {
			if !slices.Contains(attributes, a.Key) {
				t.Errorf("unexpected attribute %.60q of %s", a.Key, n.Data)
			}
			switch a.Key {
			case "id":
				if ids[a.Val] != nil || strings.ContainsAny(a.Val, " \t\n") || a.Val == "" {
					t.Errorf("id %.60q is there twice or not one word", a.Val)
				}
				ids[a.Val] = n
			case "href":
				links = append(links, a.Val)
			}
		}
		switch n.DataAtom {
		case atom.Html:
			if attr(n, "lang") != "en" {
				t.Error("the page has no language")
			}
		case atom.Meta:
			if attr(n, "http-equiv") == "Content-Security-Policy" {
				policy = attr(n, "content")
			}
		case atom.Title:
			title = content(n)
		case atom.Style:
			style = content(n)
		case atom.H1, atom.H2, atom.H3, atom.H4:
			next := int(n.Data[1] - '0')
			if next > level+1 {
				t.Errorf("heading %d after %d: %s", next, level, content(n))
			}
			if level = next; next == 1 {
				firsts++
			}
		case atom.Th:
			if attr(n, "scope") == "" {
				t.Errorf("a heading of a table has no scope: %s", content(n))
			}
		case atom.Table:
			if !slices.ContainsFunc(slices.Collect(n.Descendants()), func(d *html.Node) bool { return d.DataAtom == atom.Thead }) {
				t.Error("a table has no head")
			}
		}
	}
	if firsts != 1 {
		t.Errorf("%d headings of the first level", firsts)
	}
	if strings.TrimSpace(title) == "" {
		t.Error("the page has no title")
	}
	for _, l := range links {
		if !strings.HasPrefix(l, "#") || ids[l[1:]] == nil {
			t.Errorf("the link %.60q leads outside, or nowhere", l)
		}
	}
	sum := sha256.Sum256([]byte(style))
	if want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; !strings.HasPrefix(policy, want) {
		t.Errorf("policy %q, want %q first", policy, want)
	}
	if regexp.MustCompile(`(?i)url\(|@import|src:|image-set|expression\(`).MatchString(style) {
		t.Error("the style fetches something")
	}
	for i, slug := range slugs(r.Cases) {
		if n := ids["case-"+slug]; n == nil || !strings.Contains(content(n), Line(truncate(i, 40))[:min(len(i), 1)]) {
			t.Errorf("case %.60q is not on the page", i)
		}
	}
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func content(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}

// visible is what a reader sees, with spaces as a browser collapses them.
func visible(t *testing.T, page []byte) string {
	t.Helper()
	doc, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for n := range doc.Descendants() {
		switch {
		case n.Type == html.TextNode && n.Parent.DataAtom != atom.Style:
			b.WriteString(n.Data)
		case n.DataAtom != atom.Span && n.DataAtom != atom.Bdi && n.DataAtom != atom.Code && n.DataAtom != atom.Strong && n.DataAtom != atom.B:
			b.WriteString(" ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

var (
	variable  = regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6});`)
	hexColour = regexp.MustCompile(`#[0-9a-fA-F]{3,8}\b`)
)

// Every text can be read on every ground that it stands on, in both schemes.
func TestContrast(t *testing.T) {
	light, dark, ok := strings.Cut(pageStyle, "@media screen and (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("no dark scheme")
	}
	schemes := map[string]map[string]string{"light": {}, "dark": {}}
	for name, css := range map[string]string{"light": light, "dark": dark} {
		for _, m := range variable.FindAllStringSubmatch(css, -1) {
			schemes[name][m[1]] = m[2]
		}
	}
	if len(schemes["light"]) == 0 || len(schemes["light"]) != len(schemes["dark"]) {
		t.Fatalf("the schemes define %d and %d colours", len(schemes["light"]), len(schemes["dark"]))
	}
	if rest := hexColour.FindString(variable.ReplaceAllString(pageStyle, "")); rest != "" {
		t.Errorf("the colour %s is not one of the scheme's", rest)
	}
	grounds := map[string][]string{
		"fg": {"bg", "panel", "pass-bg", "fail-bg", "warn-bg"}, "muted": {"bg", "panel"}, "link": {"bg", "panel"},
		"pass": {"bg", "panel", "pass-bg"}, "fail": {"bg", "panel", "fail-bg"}, "warn": {"bg", "panel", "warn-bg"}, "idle": {"bg", "panel", "idle-bg"}, "mark": {"mark-bg"},
	}
	for name, colours := range schemes {
		for text, on := range grounds {
			for _, ground := range on {
				if c := contrast(t, colours[text], colours[ground]); c < 4.5 {
					t.Errorf("%s: %s on %s has %.2f:1", name, text, ground, c)
				}
			}
		}
		for _, part := range []string{"pass", "fail", "warn"} { // of bars, which are graphics
			if c := contrast(t, colours[part], colours["idle-bg"]); c < 3 {
				t.Errorf("%s: the bar of %s has %.2f:1", name, part, c)
			}
		}
	}
	if c := contrast(t, "#777777", "#ffffff"); c >= 4.5 || c < 4.4 {
		t.Errorf("#777 on white is %.2f:1, and known to be just too low", c)
	}
}

// contrast is the ratio of WCAG 2.2 (relative luminance of sRGB).
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(colour string) float64 {
		if len(colour) != 7 {
			t.Fatalf("no colour: %q", colour)
		}
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			n, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
			if err != nil {
				t.Fatal(err)
			}
			c := float64(n) / 255
			if c <= 0.04045 {
				c /= 12.92
			} else {
				c = math.Pow((c+0.055)/1.055, 2.4)
			}
			sum += weight * c
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}
