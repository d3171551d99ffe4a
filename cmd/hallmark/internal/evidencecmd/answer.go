// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

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
		if !st.IsDir() {
			return failed(fmt.Errorf("%s is a file", dir), "name the directory that holds "+evidence.EvidenceFile)
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
		fmt.Fprintf(out, "admitted for cohort %s\n", r.Cohort)
		for _, s := range r.Subjects {
			fmt.Fprintf(out, "  %-10s %s  %s\n", s.Role, s.Digest, s.Name)
		}
		for _, d := range r.Decisions {
			for _, w := range d.Waivers {
				fmt.Fprintf(out, "  waived     %s\n", showWaiver(w))
			}
		}
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
	return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("%s (%s)", sentence, r), Remedy: remedyFor(r)}
}

// remedyFor says what can be done about a denial, by the step that gives its code.
func remedyFor(r evidence.Reason) string {
	switch r {
	case evidence.ReasonPolicySignature:
		return "give the policy and the root key that belong together, with --trust and --root"
	case evidence.ReasonPolicyExpired:
		return "sign a new version of the trust policy, see `hallmark trust sign --help`"
	case evidence.ReasonPolicyRollback:
		return "give the newest trust policy that this gate has seen, or a newer one"
	case evidence.ReasonPolicyCatalogue, evidence.ReasonCatalogue:
		return "use suite, gate and policy of one release, or give the gate the other catalogue with --catalogue"
	case evidence.ReasonProfile:
		return "run the suite with --profile for what the policy requires; a profile without cases can be met by nobody"
	case evidence.ReasonClaimAbsent, evidence.ReasonClaimUnchecked:
		return "let the target claim only what it has, and give the suite what it needs to look"
	case evidence.ReasonCohortOther:
		return "run the suite on the cohort that is asked for, or ask for the one that it ran on"
	case evidence.ReasonMutation:
		return "use `hallmark conformance`, which adds mutation evidence, or a policy that only records it"
	}
	switch step := r.Step(); {
	case step == 0:
		return "give a signed trust policy, see `hallmark trust show --help`"
	case step <= 4:
		return "get the bundle again, whole and unchanged, from whoever made it"
	case step <= 6:
		return "see `hallmark trust show` for the keys that the policy trusts, and for what"
	case step <= 10:
		return "look at what the bundle says with `hallmark evidence inspect`"
	case step <= 12:
		return "mend what is named and run the suite again on this cohort"
	case step == 13:
		return "get the bundle again from whoever made it: it does not agree with itself"
	case step <= 15:
		return "run the suite again on this cohort"
	}
	return "see `hallmark gate --help`"
}
