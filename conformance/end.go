// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// processEnd is what a process says when its target is closed.
type processEnd struct {
	Teardown string `json:"teardown"` // "" when nothing was left behind
}

// workFolder is where the driver of process n keeps its state.
func workFolder(work string, n int) string { return filepath.Join(work, fmt.Sprintf("p%d", n)) }

// close closes this process's target, once, and says so.
func (c *child) close() {
	c.mu.Lock()
	b, before, was := c.bench, c.before, c.closed
	c.closed = true
	c.mu.Unlock()
	if was {
		return
	}
	c.announce("close target")
	var end processEnd
	if b != nil {
		errs := []error{c.keepDocuments(b)}
		if b.target.Close != nil {
			errs = append(errs, b.target.Close())
		}
		errs = append(errs, before.ownLeft())
		if err := errors.Join(errs...); err != nil {
			end.Teardown = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
	}
	// Here and not in the parent alone, which may have been killed. What is not empty stays for the
	// parent to complain about, or for the driver's next start to sweep.
	os.Remove(workFolder(c.plan.Work, c.peers.n))
	if others, err := filepath.Glob(filepath.Join(c.plan.Work, "p*")); err == nil && len(others) == 0 {
		target.RemoveRun(c.plan.Work)
	}
	if err := c.peers.put(endName(c.peers.n), end); err != nil {
		c.fail(err.Error())
		ginkgo.Fail(err.Error())
	}
	if end.Teardown != "" {
		ginkgo.Fail("close target: " + end.Teardown)
	}
}

// seal runs in process 1 when every other has closed its target or ended. It seals the records
// when every planned case has one and nobody was told to stop or has died.
func (c *child) seal() {
	if err := c.sealable(); err != nil {
		c.fail(err.Error())
		ginkgo.Fail("not sealed: " + err.Error())
	}
	var teardown []string
	for n := 1; n <= c.peers.total; n++ {
		var end processEnd
		// It is there, or its process has ended without: nothing is left to wait for.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := c.peers.await(ctx, n, endName(n), &end)
		cancel()
		if err != nil {
			c.fail(err.Error())
			ginkgo.Fail("not sealed: " + err.Error())
		}
		if end.Teardown != "" {
			teardown = append(teardown, end.Teardown)
		}
	}
	left := c.before.hostLeft(append(c.bench.othersScopes(), c.bench.scope), c.bench.besideScopes)
	if left != nil {
		teardown = append(teardown, left.Error())
	}
	if err := c.sameDocuments(); err != nil {
		c.fail(err.Error())
		ginkgo.Fail("not sealed: " + err.Error())
	}
	if err := c.ledger.seal(time.Now(), strings.Join(teardown, "; ")); err != nil {
		c.fail(err.Error())
		ginkgo.Fail(err.Error())
	}
	c.mu.Lock()
	c.sealed = true
	c.mu.Unlock()
	if left != nil {
		ginkgo.Fail(left.Error()) // a suite that did not succeed is not admitted, whatever its cases came to
	}
}

func (c *child) sealable() error {
	if c.ledger == nil {
		return errors.New("the run did not begin")
	}
	if text, told := marked(c.plan.Shared, markInterrupted); told || c.interrupted() {
		return errors.New("the run was interrupted: " + text)
	}
	missing, err := c.ledger.missing(c.plan.Cases)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("%d cases have no record: %s", len(missing), strings.Join(missing, ", "))
	}
	return err
}

// keepDocuments stores what the target wants kept, before Close removes it: those of process 1
// under their names, those of another with its number before them.
func (c *child) keepDocuments(b *bench) error {
	if b.target.Documents == nil {
		return nil
	}
	docs, err := b.target.Documents()
	if err != nil {
		return fmt.Errorf("target's documents: %w", err)
	}
	dir := filepath.Join(c.plan.Raw, documentsDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("target's documents: %w", err)
	}
	for name, body := range docs {
		if err := os.WriteFile(filepath.Join(dir, documentName(c.peers.n, filepath.Base(name))), body, 0o644); err != nil {
			return fmt.Errorf("target's documents: %w", err)
		}
	}
	return nil
}

func documentName(n int, name string) string {
	if n == 1 {
		return name
	}
	return fmt.Sprintf("p%d-%s", n, name)
}

// sameDocuments holds the profile and the configuration of every process's target against those
// of process 1, which evidence names for all cases.
func (c *child) sameDocuments() error {
	dir := filepath.Join(c.plan.Raw, documentsDir)
	for _, name := range []string{launchProfileDocument, workerConfigDocument} {
		first, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for n := 2; n <= c.peers.total; n++ {
			other, err := os.ReadFile(filepath.Join(dir, documentName(n, name)))
			if errors.Is(err, os.ErrNotExist) {
				continue // no case of that process has started anything
			}
			if err != nil {
				return err
			}
			if !bytes.Equal(first, other) {
				return fmt.Errorf("the %s of process %d differs from that of process 1", name, n)
			}
		}
	}
	return nil
}

// fail keeps why the run did not go to its end in this process; the first reason stays.
func (c *child) fail(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == "" {
		c.fault = why
	}
}

// leave closes the target where Ginkgo did not get to it: at a second interrupt it leaves running
// nodes to themselves and skips the rest. What they clean up is waited for.
func (c *child) leave() {
	c.mu.Lock()
	done := c.closed
	c.mu.Unlock()
	for deadline := time.Now().Add(returnGrace + cleanupBudget + closeTimeout); c.busy.Load() > 0; time.Sleep(pollPeriod) {
		if time.Now().After(deadline) {
			c.fail("a node of the suite did not end")
			break
		}
	}
	if done {
		return
	}
	defer func() { recover() }() // ginkgo.Fail outside of a node: what it would say is in fault
	c.fail("the target was closed out of turn")
	c.close()
}

// outcome is nil when the run went to its end, as far as this process can tell.
func (c *child) outcome() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.fault != "":
		return errors.New(c.fault)
	case c.peers.n == 1 && !c.sealed:
		return errors.New("the records are not sealed")
	case !c.closed:
		return errors.New("the target was not closed")
	}
	return nil
}
