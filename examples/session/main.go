// SPDX-License-Identifier: Apache-2.0

// Command session takes one sandbox of a worker from create to dispose, and prints what happens.
// docs/worker-api.md explains it step by step.
//
//	go run ./examples/session -socket /run/hallmark/worker.sock -worker worker-1 -worker-key BASE64 \
//	    -issuer control-plane -kid key-1 -key capability.pem -image sha256:…
package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v.\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var cfg client.Config
	flags := flag.NewFlagSet("session", flag.ContinueOnError)
	flags.StringVar(&cfg.Socket, "socket", "", "the worker's unix socket")
	flags.StringVar(&cfg.WorkerID, "worker", "", "the worker's id")
	flags.StringVar(&cfg.Issuer, "issuer", "", "who signs capabilities")
	flags.StringVar(&cfg.KeyID, "kid", "", "id of the key that signs them")
	flags.BoolVar(&cfg.AllowQualification, "allow-qualification", false, "accept a worker that runs candidates")
	workerKey := flags.String("worker-key", "", "the worker's public key: 32 bytes in base64")
	keyFile := flags.String("key", "", "the private key that signs capabilities: PEM, PKCS #8, Ed25519")
	image := flags.String("image", "", "config digest of an image that the worker may start")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 0 {
		return errors.New("session takes flags only")
	}
	public, err := base64.StdEncoding.DecodeString(*workerKey)
	if err != nil {
		return fmt.Errorf("read worker key: %w", err)
	}
	text, err := os.ReadFile(*keyFile)
	if err != nil {
		return err
	}
	if cfg.Key, err = capability.ParsePrivateKey(text); err != nil {
		return fmt.Errorf("read %s: %w", *keyFile, err)
	}
	cfg.WorkerKey = ed25519.PublicKey(public)
	c, err := client.New(cfg)
	if err != nil {
		return err
	}
	return session(ctx, c, *image, out)
}

// session is what docs/worker-api.md shows.
func session(ctx context.Context, c *client.Client, image string, out io.Writer) (err error) {
	h, err := c.Health(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "worker    speaks %s, gives a sandbox at most %d MiB\n", h.ProtocolVersion, h.Limits.ResourceCeilings.MemoryBytes>>20)

	req, err := c.FillExpected(ctx, api.CreateRequest{
		WorkspaceID: "team-7", SessionID: "review-31", ClientLeaseID: "review-31.1", IdleTimeoutMs: 60_000, HardTimeoutMs: 600_000, Image: image,
		Resources: api.Resources{CPUs: 500, MemoryBytes: 128 << 20, PIDs: 128, WorkspaceBytes: 16 << 20, WorkspaceInodes: 512},
	})
	if err != nil {
		return err
	}
	lease, err := c.Create(ctx, req) // compares every field of the receipt
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Dispose(ctx, "team-7", lease.SandboxID), c.Purge(ctx, "team-7")) }()
	fmt.Fprintf(out, "sandbox   generation %d in %s mode\n", lease.Receipt.Generation, lease.Receipt.Mode)

	script := []byte("#!/bin/sh\nread name\necho \"hello $name, from uid $(id -u)\"\nexit 3\n")
	file, err := c.Write(ctx, "team-7", lease.SandboxID, "greet.sh", script, client.WriteOptions{Executable: true})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "written   %d bytes, %s…\n", file.Size, file.Digest[:19])

	greet := api.ExecRequest{InvocationID: "greet-1", Argv: []string{"./greet.sh"}, Stdin: []byte("world\n"), TimeoutMs: 10_000, MaxOutputBytes: 64 << 10}
	res, err := c.ExecStream(ctx, "team-7", lease.SandboxID, greet, func(e api.ExecEvent) error {
		if e.Type == api.ExecStdout || e.Type == api.ExecStderr {
			fmt.Fprintf(out, "%-9s %s", e.Type, e.Data)
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "outcome   exit code %d, nothing left running: %v\n", *res.ExitCode, res.CleanupProven)

	again, err := c.Exec(ctx, "team-7", lease.SandboxID, greet) // the same id and request: nothing runs again
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "repeated  exit code %d, %q\n", *again.ExitCode, again.Stdout)

	greet.Stdin = []byte("moon\n")
	_, err = c.Exec(ctx, "team-7", lease.SandboxID, greet)
	var refused *api.Error
	if !errors.As(err, &refused) {
		return fmt.Errorf("another request under a used id: %w", err)
	}
	fmt.Fprintf(out, "refused   %s: %s\n", refused.Code, refused.Code.Message())
	return nil
}
