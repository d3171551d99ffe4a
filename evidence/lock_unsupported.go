// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package evidence

import "errors"

var errNoLocks = errors.New("no file locks on this system")

func lockFile(string) (func() error, error) { return nil, errNoLocks }

func lockDirectory(string) (func() error, error) { return nil, errNoLocks }
