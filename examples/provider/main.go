// SPDX-License-Identifier: Apache-2.0

// Command provider is a credential provider of kind exec over a folder of values, to copy from.
// docs/credentials.md explains it.
//
//	go build -o provider ./examples/provider
//	./provider FOLDER <request.json
//
// FOLDER/values/WORKSPACE/EXECUTION/BINDING/FIELD holds one value, as bytes. Each lease is noted in
// FOLDER/leases until its end, so that one attempt gets one payload.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// request is what the worker writes on standard input. Its ids consist of letters, digits and ._:-, and
// begin with a letter or digit, so they are safe as file names.
type request struct {
	Version      string   `json:"version"`
	Op           string   `json:"op"`
	AttemptID    string   `json:"deliveryAttemptId"`
	WorkspaceID  string   `json:"workspaceId"`
	BindingID    string   `json:"bindingId"`
	ExecutionID  string   `json:"executionId"`
	InvocationID string   `json:"invocationId"`
	FieldIDs     []string `json:"fieldIds"`
}

type field struct {
	FieldID string `json:"fieldId"`
	Value   []byte `json:"value"` // base64 in JSON
}

// lifetime is what a payload gets: the worker takes it within seconds.
const lifetime = 5 * time.Minute

// Exit statuses. 3 says that there is no such payload; anything else but 0 is a failure.
const (
	exitFailed = 1
	exitNone   = 3
)

func main() { os.Exit(provide(os.Args[1:], os.Stdin, os.Stdout)) }

func provide(args []string, in io.Reader, out io.Writer) int {
	var q request
	if len(args) != 1 || json.NewDecoder(in).Decode(&q) != nil || q.Version != "hallmark.credential-request.v1" {
		return exitFailed
	}
	note := filepath.Join(args[0], "leases", q.WorkspaceID+" "+q.AttemptID)
	switch q.Op {
	case "lease":
		return lease(args[0], note, q, out)
	case "dispose": // a real vault revokes here; that nothing is left to revoke is a success
		if err := os.Remove(note); err != nil && !errors.Is(err, os.ErrNotExist) {
			return exitFailed
		}
		return 0
	}
	return exitFailed
}

func lease(folder, note string, q request, out io.Writer) int {
	// What is there says who may have it: the request's scope only chooses.
	var fields []field
	for _, id := range q.FieldIDs {
		value, err := os.ReadFile(filepath.Join(folder, "values", q.WorkspaceID, q.ExecutionID, q.BindingID, id))
		if errors.Is(err, os.ErrNotExist) {
			return exitNone
		}
		if err != nil {
			return exitFailed
		}
		fields = append(fields, field{id, value})
	}
	f, err := os.OpenFile(note, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // an attempt comes once
	if err != nil {
		return exitFailed
	}
	if _, err := fmt.Fprintln(f, q.InvocationID); err != nil || f.Close() != nil {
		return exitFailed
	}
	err = json.NewEncoder(out).Encode(map[string]any{
		"version":         "hallmark.credential.v1",
		"scope":           map[string]string{"workspaceId": q.WorkspaceID, "bindingId": q.BindingID, "executionId": q.ExecutionID},
		"expiresAtUnixMs": time.Now().Add(lifetime).UnixMilli(),
		"fields":          fields,
	})
	if err != nil {
		return exitFailed
	}
	return 0
}
