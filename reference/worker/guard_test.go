// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// calls counts what reaches the workspace, by method.
type calls struct {
	Files
	seen []string
}

func (c *calls) did(name string) error { c.seen = append(c.seen, name); return nil }

func (c *calls) Stat(context.Context, []byte) (api.FSEntry, error) {
	return api.FSEntry{}, c.did("Stat")
}
func (c *calls) List(context.Context, []byte, string, int) ([]api.FSEntry, string, error) {
	return nil, "", c.did("List")
}
func (c *calls) Mkdir(context.Context, []byte) error              { return c.did("Mkdir") }
func (c *calls) Remove(context.Context, []byte) error             { return c.did("Remove") }
func (c *calls) Rename(context.Context, []byte, []byte) error     { return c.did("Rename") }
func (c *calls) Readlink(context.Context, []byte) ([]byte, error) { return nil, c.did("Readlink") }
func (c *calls) Read(context.Context, []byte) (io.ReadCloser, int64, error) {
	return nil, 0, c.did("Read")
}
func (c *calls) Write(context.Context, api.FileCall, io.Reader, string) (int64, string, error) {
	return 0, "", c.did("Write")
}

// Every method of Files is either one that only looks, or is guarded: a new one has to be decided about.
func TestGuardDecidesAboutEveryOperation(t *testing.T) {
	looks := []string{"List", "Read", "Readlink", "Stat"}
	refusal := errors.New("held")
	for i := range reflect.TypeFor[Files]().NumMethod() {
		name := reflect.TypeFor[Files]().Method(i).Name
		for _, held := range []bool{false, true} {
			c := &calls{}
			open := 0
			g := GuardWrites(c, func() (func(), error) {
				if held {
					return nil, refusal
				}
				open++
				return func() { open-- }, nil
			})
			method := reflect.ValueOf(g).MethodByName(name)
			args := make([]reflect.Value, method.Type().NumIn())
			for j := range args {
				args[j] = reflect.Zero(method.Type().In(j))
			}
			out := method.Call(args)
			err, _ := out[len(out)-1].Interface().(error)
			want := held && !slices.Contains(looks, name)
			if refused := errors.Is(err, refusal); refused != want || refused == slices.Contains(c.seen, name) || open != 0 {
				t.Errorf("%s, held %t: error %v, calls %q, %d claims open", name, held, err, c.seen, open)
			}
		}
	}
}
