// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

func TestALabInUseIsNotUnused(t *testing.T) {
	l := &lab.Lab{Cache: t.TempDir()}
	first, err := l.Use()
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.Use()
	if err != nil {
		t.Fatalf("a second user: %v", err)
	}
	first()
	if _, err := lab.Unused(l.Cache); !errors.Is(err, lab.ErrInUse) {
		t.Errorf("with one user left: %v", err)
	}
	second()
	release, err := lab.Unused(l.Cache)
	if err != nil {
		t.Fatalf("without a user: %v", err)
	}
	if _, err := l.Use(); !errors.Is(err, lab.ErrInUse) {
		t.Errorf("while it is taken down: %v", err)
	}
	release()
}
