// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
)

const (
	fleetUsage      = "cohort file, or folder of those, that a release needs evidence of (repeatable); of a folder the files that expect a conformant worker"
	hostsUsage      = "let evidence count on the very host that it was made on only"
	expressionUsage = "CEL over statement, cohort and now that must be true of all evidence; it can only deny"
)

// policyEdit is what `trust sign` changes in a policy before it signs.
type policyEdit struct {
	version               int64
	waivers, fleet        []string
	expression            string
	log                   policyLog
	bindHosts             bool
	addKeys, revoke, deny []string
}

func (e *policyEdit) flags(f *pflag.FlagSet) {
	f.Int64Var(&e.version, "version", 0, "version of the policy; 0 keeps the document's")
	f.StringArrayVar(&e.waivers, "waiver", nil, waiverUsage+"; in the place of an older one for the same case")
	f.StringArrayVar(&e.fleet, "fleet", nil, fleetUsage+"; in the place of the fleet")
	f.StringVar(&e.expression, "expression", "", expressionUsage+"; in the place of the expression")
	e.log.flags(f)
	f.BoolVar(&e.log.none, "no-log", false, "demand no transparency log")
	f.BoolVar(&e.bindHosts, "bind-hosts", false, hostsUsage+"; --bind-hosts=false ends it")
	f.StringArrayVar(&e.addKeys, "add-key", nil, "let a key in: ROLE,IDENTITY,FILE, for example ci,my-ci,evidence.pub, valid as long as the policy (repeatable)")
	f.StringArrayVar(&e.revoke, "revoke", nil, "digest of a key that says nothing any more, whenever it said it (repeatable)")
	f.StringArrayVar(&e.deny, "deny", nil, "digest of an image, binary, engine or cohort that no evidence may name (repeatable)")
}

// edit applies e to p. Everything that e does not name stays as it is.
func (c *commands) edit(cmd *cobra.Command, p *evidence.TrustPolicy, e policyEdit) error {
	added, err := parseWaivers(e.waivers, p.Catalogue, now())
	if err != nil {
		return err
	}
	p.Waivers = with(p.Waivers, added)
	if e.version != 0 {
		p.Version = e.version
	}
	if len(e.fleet) > 0 {
		if p.Fleet, err = c.readFleet(e.fleet); err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("expression") {
		p.Expression = e.expression
	}
	if p.Expression != "" {
		if _, err := gate.CompileExpression(p.Expression); err != nil {
			return failed(err, "write CEL that is true or false, for example 'statement.predicate.cases.all(c, c.attempts == 1)'")
		}
	}
	if cmd.Flags().Changed("bind-hosts") {
		p.BindHosts = e.bindHosts
	}
	if d, err := e.log.demand(cmd.Flags()); err != nil {
		return err
	} else if d != nil || e.log.none {
		p.Log = d
	}
	if err := checkLog(p.Log); err != nil {
		return err
	}
	for _, digest := range e.revoke {
		i := slices.IndexFunc(p.Keys, func(k evidence.PolicyKey) bool { return k.SPKIDigest == digest })
		if i < 0 {
			return usage(fmt.Sprintf("--revoke names %s, and the policy has no such key", digest), "see `hallmark trust show`")
		}
		if p.Keys[i].RevokedAt == "" {
			p.Keys[i].RevokedAt = evidence.At(now())
		}
	}
	for _, digest := range e.deny {
		if !evidence.ValidDigest(digest) {
			return usage(fmt.Sprintf("--deny %q is no digest", digest), "write sha256: and 64 hex digits")
		}
		if !slices.Contains(p.DeniedDigests, digest) {
			p.DeniedDigests = append(p.DeniedDigests, digest)
		}
	}
	for _, v := range e.addKeys {
		if err := AddKey(p, v); err != nil {
			return err
		}
	}
	return nil
}

// AddKey lets the key in that the text ROLE,IDENTITY,FILE names, on every cohort and as long as the policy.
func AddKey(p *evidence.TrustPolicy, v string) error {
	parts := strings.SplitN(v, ",", 3)
	if len(parts) != 3 || slices.Contains(parts, "") {
		return usage(fmt.Sprintf("--add-key %q has not three parts", v), "write ROLE,IDENTITY,FILE")
	}
	text, err := os.ReadFile(parts[2])
	if err != nil {
		return failed(err, "name a public key file with --add-key ROLE,IDENTITY,FILE")
	}
	keys, err := evidence.ParsePublicKeysPEM(text)
	if err != nil {
		return failed(err, remedyOf(err))
	}
	for _, k := range keys {
		if slices.ContainsFunc(p.Keys, func(o evidence.PolicyKey) bool { return o.SPKIDigest == k.Digest() }) {
			return usage(fmt.Sprintf("--add-key names %s, which the policy has", k.Digest()), "see `hallmark trust show`")
		}
		p.Keys = append(p.Keys, evidence.PolicyKey{
			SPKIDigest: k.Digest(), SPKI: k.SPKI(), Algorithm: k.Algorithm(), Role: parts[0], Identity: parts[1], Cohorts: "*",
			// A minute, as for the keys of `trust init`: the run that it signs may have ended just now.
			NotBefore: evidence.At(now().Add(-gate.KeyLead)), NotAfter: p.Expires,
		})
	}
	return nil
}

func (c *commands) readFleet(paths []string) ([]evidence.FleetCohort, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	fleet, err := c.fleet(paths)
	if err != nil {
		return nil, failed(err, "name cohort files, or a folder of them such as ci/cohorts, with --fleet")
	}
	return fleet, nil
}

// policyLog is the transparency log that a policy is to demand.
type policyLog struct {
	key       string
	witnesses []string
	threshold int
	none      bool
}

func (l *policyLog) flags(f *pflag.FlagSet) {
	f.StringVar(&l.key, "log-key", "", "verifier key of the transparency log that must hold all evidence")
	f.StringArrayVar(&l.witnesses, "witness", nil, "verifier key of a witness of that log (repeatable)")
	f.IntVar(&l.threshold, "witnesses", -1, "how many of the witnesses must have cosigned (default all)")
}

// demand is what the flags say; nil when they say nothing, or that no log is demanded. An empty key is a slip of
// whoever wanted one.
func (l policyLog) demand(f *pflag.FlagSet) (*evidence.PolicyLog, error) {
	given := f.Changed("log-key")
	switch {
	case given && l.none:
		return nil, usage("--log-key and --no-log exclude each other", "leave one of them out")
	case given && l.key == "":
		return nil, usage("--log-key is empty", "give the key that `hallmark evidence log init` printed, or --no-log")
	case !given && (f.Changed("witness") || f.Changed("witnesses")):
		return nil, usage("witnesses of no log", "name the log with --log-key KEY, and all of its witnesses")
	case !given:
		return nil, nil
	}
	d := &evidence.PolicyLog{Key: l.key, Witnesses: slices.Sorted(slices.Values(l.witnesses)), Threshold: int64(l.threshold)}
	if d.Witnesses == nil {
		d.Witnesses = []string{}
	}
	if l.threshold < 0 {
		d.Threshold = int64(len(d.Witnesses))
	}
	return d, nil
}

// checkLog refuses a demand that no log could meet; nil demands none.
func checkLog(l *evidence.PolicyLog) error {
	if l == nil {
		return nil
	}
	if _, err := gate.LogTrust(l); err != nil {
		return failed(err, "give the keys as `hallmark evidence log init` and `evidence public-key --witness` print them")
	}
	return nil
}
