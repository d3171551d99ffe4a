// SPDX-License-Identifier: Apache-2.0

// Command apidoc renders the OpenAPI document of the worker API as one HTML page for people:
//
//	go run ./ci/apidoc -o out/worker-api.html
//
// It shows what the document says and adds nothing to it. The page has no scripts, no addresses and
// no other files; it is readable from 360 px to paper, in light and in dark.
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

//go:embed page.html.tmpl
var layout string

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("apidoc", flag.ContinueOnError)
	out := flags.String("o", "", "file to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() != 0 {
		return errors.New("apidoc takes -o FILE and nothing else")
	}
	page, err := render(api.OpenAPI())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(*out, page, 0o644)
}

// render returns the page of a document.
func render(text []byte) ([]byte, error) {
	p, err := read(text)
	if err != nil {
		return nil, err
	}
	t, err := template.New("page").Parse(layout)
	if err != nil {
		return nil, fmt.Errorf("parse layout: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	return b.Bytes(), nil
}
