// SPDX-License-Identifier: Apache-2.0

// Package passphrase gets the passphrases of private keys from whoever runs a command: from the file
// that the environment variable HALLMARK_PASSPHRASE_FILE names, or else from the terminal.
//
// It never takes one from an argument or from the environment itself, which other processes can read.
package passphrase

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// File is the environment variable that names the file. One line end at the file's end is not part of
// the passphrase. Nobody but its owner may read it.
const File = "HALLMARK_PASSPHRASE_FILE"

const maxFile = 4 << 10 // bytes

// ErrNone means that there is neither a file nor a terminal.
var ErrNone = errors.New("set " + File + " to a file that holds the passphrase, or run this on a terminal")

// Ask is a signing.Passphrase.
func Ask(path string) ([]byte, error) {
	if name := os.Getenv(File); name != "" {
		return read(name)
	}
	return prompt("Passphrase of " + path + ": ")
}

// New gets the passphrase for a new key: from a terminal, twice the same.
func New(path string) ([]byte, error) {
	if name := os.Getenv(File); name != "" {
		return read(name)
	}
	first, err := prompt("Passphrase for " + path + ": ")
	if err != nil {
		return nil, err
	}
	second, err := prompt("The same again: ")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(first, second) {
		return nil, errors.New("the two passphrases differ")
	}
	return first, nil
}

func read(name string) (_ []byte, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %s: only its owner may read it", name, info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	if len(text) == 0 || len(text) > maxFile {
		return nil, fmt.Errorf("%s holds no passphrase of 1 to %d bytes", name, maxFile)
	}
	return text, nil
}

// prompt reads from the terminal of the process, whatever standard input is.
func prompt(text string) (_ []byte, err error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, ErrNone
	}
	defer func() { err = errors.Join(err, tty.Close()) }()
	if _, err := fmt.Fprint(tty, text); err != nil {
		return nil, err
	}
	secret, err := term.ReadPassword(int(tty.Fd()))
	fmt.Fprintln(tty)
	return secret, err
}
