// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/hallmark-sandbox/hallmark/reference/credential"

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
	return credential.New(credential.Options{Bindings: c.Bindings, Providers: providers, Store: d.store, Now: d.clock.Now, Log: d.log})
}
