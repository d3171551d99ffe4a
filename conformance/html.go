// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"strings"
)

// report.html is one file that needs nothing else: no script, no font, no address outside of
// it, and a policy that would refuse them. What a target or a tenant wrote into the report is
// hostile: html/template escapes it, and [pieces] spells out what escaping leaves alive.

//go:embed report.tmpl
var pageTemplate string

//go:embed report.css
var pageStyle string

// Bounds of what the page shows, in bytes. What is cut says so.
const (
	maxShownText     = 4 << 10  // of one text of the report
	maxShownArtifact = 64 << 10 // of one raw artifact
	maxShownFiles    = 2 << 20  // of all raw artifacts; failures come first
)

// html renders r. The raw artifacts are read from dir, the folder of the report.
func (r Report) html(dir fs.FS) ([]byte, error) {
	sum := sha256.Sum256([]byte(pageStyle))
	tmpl, err := template.New("report").Funcs(template.FuncMap{
		"pieces": shownText,
		"raw":    pieces,
		"line":   func(s string) string { return oneLine(s, 200) },
	}).Parse(pageTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse page: %w", err)
	}
	p := pageMaker{Report: r, dir: dir, budget: maxShownFiles}
	view := p.page()
	view.Style, view.StyleHash = template.CSS(pageStyle), "sha256-"+base64.StdEncoding.EncodeToString(sum[:])
	var b bytes.Buffer
	if err := tmpl.Execute(&b, view); err != nil {
		return nil, fmt.Errorf("render page: %w", err)
	}
	return b.Bytes(), nil
}

// shownText is s as the page shows it, cut with a word about it.
func shownText(s string) []piece {
	cut := truncate(s, maxShownText)
	out := pieces(cut)
	if len(cut) < len(s) {
		out = append(out, piece{fmt.Sprintf(" [cut: %s of %s bytes; report.json has all]", grouped(int64(len(cut))), grouped(int64(len(s)))), true})
	}
	return out
}

// mark is a status, or what stands for one, as symbol and word: colour alone says nothing.
type mark struct{ Class, Symbol, Word string }

func statusMark(s Status) mark {
	switch s {
	case Pass:
		return mark{"pass", "✓", "pass"}
	case Fail:
		return mark{"fail", "✗", "fail"}
	case Inconclusive:
		return mark{"warn", "?", "inconclusive"}
	case Errored:
		return mark{"warn", "!", "error"}
	case NotApplicable:
		return mark{"idle", "○", "not applicable"}
	case NotRun:
		return mark{"idle", "–", "not run"}
	case Waived:
		return mark{"warn", "~", "waived"}
	}
	return mark{"warn", "!", "unknown status"}
}

// artifact reads one raw file for the page: its text when it has one and the budget allows.
func (p *pageMaker) artifact(a ReportArtifact) fileView {
	v := fileView{Name: a.Name, Role: a.Role, Path: a.Path, Digest: a.Digest, Size: bytesText(a.Size)}
	if strings.HasSuffix(a.Path, "/"+strings.TrimPrefix(a.Digest, "sha256:")) {
		v.Digest = "" // the path says it
	}
	switch {
	case a.Size == 0:
		v.Why = "empty"
		return v
	case p.budget <= 0:
		v.Why = "not shown: this page already holds " + bytesText(maxShownFiles) + " of artifacts"
		return v
	}
	body, err := readAtMost(p.dir, a.Path, min(maxShownArtifact, p.budget))
	switch {
	case err != nil:
		v.Why = "not shown: it cannot be read"
	case !isText(body):
		v.Why = "not shown: it is not text"
	default:
		v.Shown, v.Body = true, truncate(string(body), len(body))
		p.budget -= len(body)
		if int64(len(body)) < a.Size {
			v.Cut = fmt.Sprintf("cut: the first %s of %s bytes", grouped(int64(len(body))), grouped(a.Size))
		}
	}
	return v
}

func readAtMost(dir fs.FS, path string, max int) ([]byte, error) {
	f, err := dir.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(io.LimitReader(f, int64(max)))
	return b.Bytes(), err
}

// isText reports whether a person could read b: at most one byte in eight is not a printable
// character, and none of them is NUL.
func isText(b []byte) bool {
	if bytes.IndexByte(b, 0) >= 0 {
		return false
	}
	odd := 0
	for _, p := range pieces(string(b)) {
		if p.Mark {
			odd += strings.Count(p.Text, `\`)
		}
	}
	return odd <= len(b)/8
}
