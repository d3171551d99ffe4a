// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package evidence

import "errors"

func lockFile(string) (func() error, error) {
	return nil, errors.New("no file locks on this system")
}
