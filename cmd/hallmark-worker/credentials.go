// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/credential"
)

// coreLimit is what this process and its children, providers among them, may dump: 1 byte is too little
// for a file, and with exactly that the kernel runs no program of core_pattern(5) either, which it does with
// 0 (fs/coredump.c of Linux).
const coreLimit = 1

// seal keeps what this process holds, secrets for a moment, out of core dumps, and other users' hands
// off its memory.
func seal() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: coreLimit, Max: coreLimit}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("clear dumpable: %w", err)
	}
	return nil
}

// credentials opens the configured providers; nil without any, which refuses every reference. They
// stay open as long as the process: what they hold is a directory.
func (d *daemon) credentials() (*credential.Resolver, error) {
	c := d.cfg.Credentials
	if c == nil {
		return nil, nil
	}
	providers, err := c.Open()
	if err != nil {
		return nil, err
	}
	d.resolver, err = credential.New(credential.Options{Bindings: c.Bindings, Providers: providers, Store: d.store, Now: d.clock.Now, Log: d.log})
	return d.resolver, err
}

// settle tells providers of what an earlier run of this worker left open, beside the serving: none of that
// run's sandboxes is left, and nobody waits for a slow provider. The returned function ends it.
func (d *daemon) settle(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.resolver.Settle(ctx)
	}()
	return func() { cancel(); <-done }
}
