// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"bytes"
	"context"
	"strings"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func workspace() []Check {
	return []Check{
		{"files", "What is written is read back byte by byte, replaced whole, and removed; stat says what it is and how large.", checkFiles},
		{"file-names", "Names are bytes: any but the empty one, . and .., without / and NUL.", checkFileNames},
		{"file-refusals", "A path that leaves the workspace and an entry that is not there are refused with a typed error.", checkFileRefusals},
	}
}

func checkFiles(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	large := bytes.Repeat([]byte{0, 0xff, '\n', 'x', '"', '\\', 0x80}, 200000)
	var f faults
	files := sb.Files()
	for _, body := range [][]byte{large, {}, []byte("short")} {
		if err := files.Write(ctx, "file", body); err != nil {
			f.add("write of %d bytes: %w", len(body), err)
			continue
		}
		got, err := files.Read(ctx, "file")
		if err != nil || !bytes.Equal(got, body) {
			f.add("%d bytes are read back as %d, %v", len(body), len(got), err)
		}
		e, err := files.Stat(ctx, "file")
		if err != nil || e.Kind != "file" || e.Size != int64(len(body)) || e.Name != "file" {
			f.add("stat of a file of %d bytes says %q, %s, %d bytes, %v", len(body), e.Name, e.Kind, e.Size, err)
		}
	}
	if err := files.Remove(ctx, "file"); err != nil {
		f.add("remove: %w", err)
	}
	_, err = files.Stat(ctx, "file")
	f.typed("stat of a removed file", err, target.KindNotFound)
	return f.join()
}

var oddNames = []string{
	"with space", " ", "-rf", "...", ".hidden", "new\nline", "tab\t", "quote\"'`$", `back\slash`, "*", "ünï", "\xff\xfe\x80", "~", "%41", strings.Repeat("n", 255),
}

func checkFileNames(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	var f faults
	files := sb.Files()
	for i, name := range oddNames {
		body := []byte{byte(i)}
		if err := files.Write(ctx, name, body); err != nil {
			f.add("write %.20q: %w", name, err)
			continue
		}
		got, err := files.Read(ctx, name)
		if err != nil || !bytes.Equal(got, body) {
			f.add("read %.20q: %q, %v", name, got, err)
		}
		if e, err := files.Stat(ctx, name); err != nil || e.Name != name {
			f.add("stat of %.20q says %.20q, %v", name, e.Name, err)
		}
	}
	for _, name := range oddNames {
		if err := files.Remove(ctx, name); err != nil {
			f.add("remove %.20q: %w", name, err)
		}
	}
	return f.join()
}

func checkFileRefusals(ctx context.Context, s *subject) error {
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	var f faults
	files := sb.Files()
	_, err = files.Read(ctx, "absent")
	f.typed("read of an absent file", err, target.KindNotFound)
	_, err = files.Stat(ctx, "absent")
	f.typed("stat of an absent file", err, target.KindNotFound)
	f.typed("remove of an absent file", files.Remove(ctx, "absent"), target.KindNotFound)
	for _, path := range []string{"../up", "/etc/hostname", "a/../../up", ""} {
		_, err := files.Read(ctx, path)
		f.typed("read of "+quoted(path), err)
		f.typed("write of "+quoted(path), files.Write(ctx, path, []byte("x")))
	}
	return f.join()
}

func quoted(path string) string { return `"` + path + `"` }
