// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/credential/credentialtest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// source is a directory of payloads with the fixture's in it.
func source(t *testing.T) (dir, payload string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "payloads")
	must(t, os.Mkdir(dir, 0o700))
	payload = filepath.Join(dir, credentialtest.BindingID+".json")
	must(t, os.WriteFile(payload, credentialtest.Payload(time.Now().Add(time.Hour)), 0o600))
	return dir, payload
}

func openFile(t *testing.T, dir string) *credential.File {
	t.Helper()
	p, err := credential.OpenFile(dir)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func fixtureRequest() credential.Request {
	return credential.Request{AttemptID: "d", WorkspaceID: credentialtest.WorkspaceID, BindingID: credentialtest.BindingID,
		ExecutionID: credentialtest.ExecutionID, InvocationID: "i", FieldIDs: []string{credentialtest.FieldID}}
}

func TestFileProviderKeepsTheContract(t *testing.T) {
	credentialtest.Run(t, credentialtest.Config{
		New: func(t *testing.T) credential.Provider { dir, _ := source(t); return openFile(t, dir) },
		Broken: func(t *testing.T) credential.Provider {
			dir, payload := source(t)
			must(t, os.Chmod(payload, 0o640))
			return openFile(t, dir)
		},
	})
}

func TestFileProviderReadsOnlyWhatNobodyElseCanChange(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, dir, payload string)
		want error
	}{
		{"group may read", func(t *testing.T, _, p string) { must(t, os.Chmod(p, 0o640)) }, credential.ErrUnsafe},
		{"set-id", func(t *testing.T, _, p string) { must(t, unix.Chmod(p, 0o4600)) }, credential.ErrUnsafe},
		{"directory opened up", func(t *testing.T, d, _ string) { must(t, os.Chmod(d, 0o755)) }, credential.ErrUnsafe},
		{"two names", func(t *testing.T, d, p string) { must(t, os.Link(p, filepath.Join(d, "other"))) }, credential.ErrUnsafe},
		{"symlink", func(t *testing.T, d, p string) {
			must(t, os.Rename(p, filepath.Join(d, "real")))
			must(t, os.Symlink("real", p))
		}, credential.ErrUnsafe},
		{"FIFO", func(t *testing.T, _, p string) {
			must(t, os.Remove(p))
			must(t, unix.Mkfifo(p, 0o600))
		}, credential.ErrUnsafe},
		{"directory", func(t *testing.T, _, p string) {
			must(t, os.Remove(p))
			must(t, os.Mkdir(p, 0o700))
		}, credential.ErrUnsafe},
		{"absent", func(t *testing.T, _, p string) { must(t, os.Remove(p)) }, credential.ErrNoPayload},
		{"too large", func(t *testing.T, _, p string) { must(t, os.Truncate(p, credential.MaxPayloadBytes+1)) }, credential.ErrTooLarge},
		{"of another user", func(t *testing.T, _, p string) {
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			must(t, os.Chown(p, 65534, 65534))
		}, credential.ErrUnsafe},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, payload := source(t)
			p := openFile(t, dir)
			tt.do(t, dir, payload)
			b, err := p.Lease(t.Context(), fixtureRequest())
			if !errors.Is(err, tt.want) || b != nil {
				t.Errorf("%d bytes, %v, want %v", len(b), err, tt.want)
			}
		})
	}
}

func TestFileProviderRefusesItsDirectory(t *testing.T) {
	dir, payload := source(t)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	open := filepath.Join(t.TempDir(), "open")
	must(t, os.Mkdir(open, 0o750))
	for name, path := range map[string]string{"symlink": link, "below a symlink": filepath.Join(link, "x"), "mode 0750": open, "file": payload, "absent": filepath.Join(dir, "none")} {
		if p, err := credential.OpenFile(path); err == nil {
			p.Close()
			t.Errorf("%s is accepted", name)
		} else if strings.Contains(err.Error(), credentialtest.Secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
