// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
)

// bundlesExist tells a wrong path from a bundle that is to be denied: what holds no evidence file is
// no bundle, and asking about it is a mistake of whoever asks.
func bundlesExist(dirs []string) error {
	for _, dir := range dirs {
		st, err := os.Stat(dir)
		if err != nil {
			return failed(err, "name a bundle directory with --bundle; `hallmark run --key` writes one")
		}
		if !st.IsDir() && filepath.Ext(dir) == ".tar" {
			continue
		}
		if !st.IsDir() {
			return failed(fmt.Errorf("%s is a file", dir), "name the directory that holds "+evidence.EvidenceFile+", or the .tar that `hallmark evidence pack` wrote")
		}
		if _, err := os.Stat(filepath.Join(dir, evidence.EvidenceFile)); err == nil {
			continue
		}
		remedy := "name the directory that holds " + evidence.EvidenceFile
		if below := filepath.Join(dir, "bundle"); isBundle(below) {
			remedy = "name " + below
		}
		return failed(fmt.Errorf("%s is no bundle: it holds no %s", dir, evidence.EvidenceFile), remedy)
	}
	return nil
}

// maxDepth bounds the search for bundles: out/NAME/bundle and one folder more.
const maxDepth = 4

// bundlesBelow are all bundle directories in dir, in the order of their names. Links are not followed.
func bundlesBelow(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		if isBundle(path) {
			out = append(out, path)
			return fs.SkipDir
		}
		if rel, err := filepath.Rel(dir, path); err != nil {
			return err
		} else if rel != "." && strings.Count(rel, string(filepath.Separator))+1 >= maxDepth {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, failed(err, "name a readable folder with --evidence")
	}
	if len(out) == 0 {
		return nil, failed(fmt.Errorf("%s holds no bundle", dir), "name the folder in which `hallmark run --key` wrote them")
	}
	return out, nil
}

func isBundle(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, evidence.EvidenceFile))
	return err == nil
}

// answer prints the gate's decision in full and once: the error that sets the exit status repeats
// no more of it than the code.
func answer(out io.Writer, g gate.Config, r gate.Result) {
	if !r.Admitted && len(r.Decisions) == 0 { // it did not come to the bundles
		fmt.Fprintf(out, "denied: %s\n", r.Detail)
		return
	}
	if r.Admitted {
		admitted(out, r)
		fmt.Fprintf(out, "pins: %s\n", r.Pins)
		return
	}
	for i, d := range r.Decisions {
		name := ""
		if len(r.Decisions) > 1 {
			name = g.Bundles[i] + ": "
		}
		if d.Admitted {
			fmt.Fprintf(out, "%snot denied by itself\n", name)
			continue
		}
		denial(out, name+"denied", d)
	}
	if all(r.Decisions) { // each by itself, but not together
		fmt.Fprintf(out, "denied: %s\n", r.Detail)
	}
	if named(r.Fleet) {
		PrintRelease(out, r.Fleet)
	}
}

// admitted prints what may start, once per digest: a fleet's bundles name the same images.
func admitted(out io.Writer, r gate.Result) {
	if named(r.Fleet) {
		fmt.Fprintf(out, "released for %d cohorts\n", len(r.Fleet.Cohorts))
		PrintRelease(out, r.Fleet)
	} else {
		fmt.Fprintf(out, "admitted for cohort %s\n", r.Cohort)
	}
	seen := map[string]bool{}
	for _, s := range r.Subjects {
		kept := s.Role == evidence.ImageWorkload && !slices.ContainsFunc(r.Fleet.Images, func(m evidence.ImageRelease) bool { return m.ConfigDigest == s.Digest && m.Released })
		if !seen[s.Digest] && !kept {
			fmt.Fprintf(out, "  %-10s %s  %s\n", s.Role, s.Digest, s.Name)
		}
		seen[s.Digest] = true
	}
	for _, d := range r.Decisions {
		for _, w := range d.Waivers {
			fmt.Fprintf(out, "  waived     %s\n", showWaiver(w))
		}
	}
}

// named says whether the policy has a fleet.
func named(f evidence.Fleet) bool { return len(f.Cohorts) > 0 && f.Cohorts[0].Name != "" }

// PrintRelease prints the standing of every required cohort, and of every image.
func PrintRelease(out io.Writer, f evidence.Fleet) {
	for _, c := range f.Cohorts {
		if c.Admitted {
			fmt.Fprintf(out, "  cohort     %s: admitted until %s, for %s\n", c.Name, c.NotAfter, strings.Join(c.Profiles, ", "))
		} else {
			fmt.Fprintf(out, "  cohort     %s: blocks: %s: %s\n", c.Name, c.Reason, c.Reason.Sentence())
		}
	}
	for _, m := range f.Images {
		state := "released"
		if !m.Released {
			var by []string
			for _, b := range m.Blocked {
				by = append(by, fmt.Sprintf("%s (%s)", b.Cohort, b.Reason))
			}
			state = "kept back by " + strings.Join(by, ", ")
		}
		fmt.Fprintf(out, "  image      %s %s: %s\n", m.ConfigDigest, m.Name, state)
	}
}

func all(ds []evidence.Decision) bool {
	for _, d := range ds {
		if !d.Admitted {
			return false
		}
	}
	return true
}

// denial prints the code with its sentence and what was found, or else the detail.
func denial(out io.Writer, what string, d evidence.Decision) {
	if len(d.Findings) == 0 {
		fmt.Fprintf(out, "%s: %s\n", what, d.Detail)
		return
	}
	fmt.Fprintf(out, "%s: %s: %s\n", what, d.Reason, d.Reason.Sentence())
	for _, f := range d.Findings {
		name := f.Case
		if name == "" {
			name = "run"
		}
		fmt.Fprintf(out, "  %-6s %-20s %s\n", name, f.Code, f.Text)
	}
}

// refusal is the error of a denial.
func refusal(sentence string, r evidence.Reason) error {
	return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("%s (%s)", sentence, r), Remedy: r.Remedy()}
}
