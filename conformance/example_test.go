// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
)

// TestMyRuntime is how a runtime's own tests run the catalogue: name its driver in place of the toy.
func ExampleTest() {
	TestMyRuntime := func(t *testing.T) {
		conformance.Test(t, conformance.Options{
			Suite: conformance.Suite{
				Cases: cases.All(), Arming: cases.Arming(), Probes: cases.Probes(),
				Drivers: map[string]conformance.Open{"mine": toy.Open},
			},
			Driver:    "mine",
			Workloads: []string{"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
			Profiles:  []string{conformance.ProfileBaseline},
			Tier:      conformance.Smoke,
			Tenant:    os.Getenv("HALLMARK_TENANT"), // go build github.com/hallmark-sandbox/hallmark/fixtures/tenant
		})
	}
	_ = TestMyRuntime
}

// A Ginkgo suite takes the cases in beside its own specs.
func ExampleRegister() {
	_ = ginkgo.Describe("my runtime", func() {
		conformance.Register(conformance.Options{
			Suite: conformance.Suite{
				Cases: cases.All(), Arming: cases.Arming(), Probes: cases.Probes(),
				Drivers: map[string]conformance.Open{"mine": toy.Open},
			},
			Driver:    "mine",
			Workloads: []string{"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
			Profiles:  []string{conformance.ProfileBaseline},
			Tier:      conformance.Smoke,
			Out:       "out/mine", Work: "/run/mine",
			Tenant: os.Getenv("HALLMARK_TENANT"),
		})
	})
}
