// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"os"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Sweep is [evidence.FlipSweep] over the first bundle of c, in memory: it changes no file,
// reads no rollback memory and needs no gate key. perBlob offsets of each blob are tried.
func Sweep(c Config, seed uint64, perBlob int) (evidence.FlipReport, error) {
	if len(c.Bundles) != 1 || perBlob < 2 {
		return evidence.FlipReport{}, fmt.Errorf("flip sweep: %d bundles, %d offsets per blob", len(c.Bundles), perBlob)
	}
	rootText, err := os.ReadFile(c.Root)
	if err != nil {
		return evidence.FlipReport{}, fmt.Errorf("root key: %w", err)
	}
	roots, err := evidence.ParsePublicKeysPEM(rootText)
	if err != nil {
		return evidence.FlipReport{}, fmt.Errorf("root key %s: %w", c.Root, err)
	}
	trust, err := os.ReadFile(c.Trust)
	if err != nil {
		return evidence.FlipReport{}, fmt.Errorf("trust policy: %w", err)
	}
	mem := evidence.NewMemory()
	policy, err := evidence.OpenPolicy(trust, roots, mem, c.Now)
	if err != nil {
		return evidence.FlipReport{}, err
	}
	b, err := evidence.ReadBundle(c.Bundles[0], evidence.AuditDepth)
	if err != nil {
		return evidence.FlipReport{}, err
	}
	return evidence.FlipSweep(evidence.Question{
		Policy: policy, Memory: mem, Catalogue: &c.Catalogue, Cohort: c.Cohort, Want: c.Want, Now: c.Now,
	}, b, seed, perBlob)
}
