// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// connect returns a client of a worker that runs in this process.
func connect() (*client.Client, func()) {
	cfg, stop, err := inProcess()
	if err != nil {
		panic(err)
	}
	c, err := client.New(cfg)
	if err != nil {
		panic(err)
	}
	return c, stop
}

// request asks for a small sandbox over the workspace team-7.
func request() api.CreateRequest {
	return api.CreateRequest{
		WorkspaceID: "team-7", SessionID: "review-31", ClientLeaseID: "review-31.1", IdleTimeoutMs: 60_000, HardTimeoutMs: 600_000, Image: image,
		Resources: api.Resources{CPUs: 500, MemoryBytes: 128 << 20, PIDs: 128, WorkspaceBytes: 16 << 20, WorkspaceInodes: 512},
	}
}

// The key of the worker, and the one that it trusts for capabilities, come from its configuration.
func ExampleClient_Health() {
	cfg, stop, err := inProcess()
	if err != nil {
		panic(err)
	}
	defer stop()
	c, err := client.New(cfg)
	if err != nil {
		panic(err)
	}
	h, err := c.Health(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println(h.WorkerID, h.Mode, h.Features)
	// Output: worker-1 production [exec files]
}

// A failure is an *api.Error with one of the codes of the contract.
func ExampleClient_Exec() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	req, err := c.FillExpected(ctx, request()) // or what a release gate said
	if err != nil {
		panic(err)
	}
	lease, err := c.Create(ctx, req) // verifies the receipt
	if err != nil {
		panic(err)
	}
	defer func() {
		if err := c.Dispose(ctx, "team-7", lease.SandboxID); err != nil {
			panic(err)
		}
		fmt.Println("gone")
	}()
	res, err := c.Exec(ctx, "team-7", lease.SandboxID, api.ExecRequest{
		InvocationID: "greet-1", Argv: []string{"echo", "hello", "world"}, TimeoutMs: 10_000, MaxOutputBytes: 64 << 10,
	})
	var failure *api.Error
	switch {
	case errors.As(err, &failure) && failure.Code == api.OutcomeUnknown:
		fmt.Println("it may have run; nobody may run it again without thinking")
	case err != nil:
		panic(err)
	default:
		fmt.Printf("exit code %d: %s", *res.ExitCode, res.Stdout)
	}
	// Output:
	// exit code 0: hello world
	// gone
}

// Output is shown as it comes; the outcome comes last.
func ExampleClient_ExecStream() {
	c, stop := connect()
	defer stop()
	req := api.ExecRequest{InvocationID: "greet-2", Argv: []string{"echo", "hello", "world"}, TimeoutMs: 10_000, MaxOutputBytes: 64 << 10}
	res, err := c.ExecStream(context.Background(), "team-7", "7f3c9a52d1e84b06b7a9c0d4e5f61728", req, func(e api.ExecEvent) error {
		if e.Type == api.ExecStdout {
			fmt.Printf("%q\n", e.Data)
		}
		return nil // an error would end the command
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("exit code", *res.ExitCode)
	// Output:
	// "hello "
	// "world\n"
	// exit code 0
}

// Files go in and out as bytes, and are whole or not there.
func ExampleClient_Write() {
	c, stop := connect()
	defer stop()
	ctx, sandbox := context.Background(), "7f3c9a52d1e84b06b7a9c0d4e5f61728"
	if _, err := c.Write(ctx, "team-7", sandbox, "notes.txt", []byte("first\n"), client.WriteOptions{}); err != nil {
		panic(err)
	}
	// A large file needs its size and digest before, since the capability covers them.
	body := strings.Repeat("0123456789abcdef", 4096)
	if _, err := c.WriteFrom(ctx, "team-7", sandbox, "data", strings.NewReader(body), int64(len(body)), api.Digest([]byte(body)), client.WriteOptions{}); err != nil {
		panic(err)
	}
	page, err := c.FS(ctx, "team-7", sandbox, api.FSRequest{Op: api.FSList})
	if err != nil {
		panic(err)
	}
	for _, e := range page.Entries {
		fmt.Println(e.Kind, e.Name, e.Size)
	}
	f, err := c.Open(ctx, "team-7", sandbox, "notes.txt")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := io.Copy(os.Stdout, f); err != nil {
		panic(err)
	}
	// Output:
	// file data 65536
	// file notes.txt 6
	// first
}

// When Events returns the worker watches: what happens from then on is told.
func ExampleClient_Events() {
	c, stop := connect()
	defer stop()
	ctx, sandbox := context.Background(), "7f3c9a52d1e84b06b7a9c0d4e5f61728"
	events, err := c.Events(ctx, "team-7", sandbox)
	if err != nil {
		panic(err)
	}
	if _, err := c.Write(ctx, "team-7", sandbox, "result.json", []byte("{}"), client.WriteOptions{}); err != nil {
		panic(err)
	}
	for change, err := range events.All() {
		if err != nil {
			panic(err) // the worker's reason for the end, or STREAM_CLOSED
		}
		if change.Type == api.ChangeOverflow {
			continue // changes were lost: list again
		}
		fmt.Println(change.Type, change.Kind, change.Path)
		if change.Path == "result.json" {
			break // ends the stream
		}
	}
	// Output: created file result.json
}
