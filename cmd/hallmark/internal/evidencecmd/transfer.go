// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/archive"
	"github.com/hallmark-sandbox/hallmark/evidence/registry"
)

func (c *commands) pack() *cobra.Command {
	var dir, out string
	cmd := &cobra.Command{
		Use:   "pack --bundle DIR --out FILE",
		Short: "Write a bundle as one tar archive, the same bytes every time",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" || out == "" {
				return usage("pack needs a bundle and an output file", "name them with --bundle DIR and --out FILE")
			}
			b, err := readBundle(dir)
			if err != nil {
				return err
			}
			if err := writeNew(out, func(f *os.File) error { return archive.Write(f, b) }); err != nil {
				return failed(err, "name a new file")
			}
			fmt.Fprintln(cmd.OutOrStdout(), out)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "bundle", "", "bundle directory")
	cmd.Flags().StringVar(&out, "out", "", "archive to write")
	return cmd
}

func (c *commands) unpack() *cobra.Command {
	var in, out string
	cmd := &cobra.Command{
		Use:   "unpack --archive FILE --out DIR",
		Short: "Write the bundle in an archive of pack as a directory; verifies no signature",
		Long: "Refuses whatever is not, byte for byte, the archive that pack writes.\n" +
			"Exit status: 0 written, 1 refused, 3 error.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in == "" || out == "" {
				return usage("unpack needs an archive and an output directory", "name them with --archive FILE and --out DIR")
			}
			f, err := os.Open(in)
			if err != nil {
				return failed(err, "name a file that `hallmark evidence pack` wrote")
			}
			b, err := archive.Read(f)
			if err := errors.Join(err, f.Close()); err != nil {
				return refused(err, "get the archive again, whole and unchanged, from whoever made it")
			}
			return c.writeBundle(cmd, b, out)
		},
	}
	cmd.Flags().StringVar(&in, "archive", "", "archive to read")
	cmd.Flags().StringVar(&out, "out", "", "new directory for the bundle")
	return cmd
}

// remote is what commands that speak to a registry have in common.
type remote struct {
	plainHTTP bool
	timeout   time.Duration
}

func (r *remote) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.plainHTTP, "plain-http", false, "speak HTTP without TLS, as to a registry on this host")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 10*time.Minute, "how long all of it may take")
}

// config uses the credentials that `docker login` keeps.
func (r *remote) config() (registry.Config, error) {
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return registry.Config{}, failed(err, "correct the configuration file of docker, where the credentials of registries are")
	}
	return registry.Config{PlainHTTP: r.plainHTTP, Client: &auth.Client{
		Client: &http.Client{Transport: retry.NewTransport(nil)}, Cache: auth.NewCache(), Credential: credentials.Credential(store),
	}}, nil
}

func (r *remote) context(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), r.timeout)
}

func (c *commands) push() *cobra.Command {
	var r remote
	var dir, to string
	var images []string
	cmd := &cobra.Command{
		Use:   "push --bundle DIR (--to REPOSITORY[:TAG] | --image REPOSITORY@DIGEST ...)",
		Short: "Store a bundle in a registry: by a tag, or beside the images that it is about",
		Long: "With --to, stores the bundle as one manifest in a repository. With --image, stores it as a referrer of\n" +
			"an image, and a plain Sigstore bundle for each signer, where other tools look; a registry without the\n" +
			"referrers API gets the fallback tag. Credentials are those of `docker login`.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" || to == "" && len(images) == 0 {
				return usage("push needs a bundle and a place", "name them with --bundle DIR, and --to or --image")
			}
			b, err := readBundle(dir)
			if err != nil {
				return err
			}
			config, err := r.config()
			if err != nil {
				return err
			}
			ctx, stop := r.context(cmd)
			defer stop()
			if to != "" {
				digest, err := registry.Push(ctx, config, b, to)
				if err != nil {
					return refused(err, "check the reference, the registry and your rights there")
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", to, digest)
			}
			for _, image := range images {
				digest, err := registry.Attach(ctx, config, b, image)
				if err != nil {
					return refused(err, "name an image of the bundle by its manifest digest, in a registry that holds it")
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", image, digest)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "bundle", "", "bundle directory")
	cmd.Flags().StringVar(&to, "to", "", "repository with a tag, such as registry.example/evidence:latest")
	cmd.Flags().StringArrayVar(&images, "image", nil, "image by manifest digest (repeatable)")
	r.flags(cmd)
	return cmd
}

func (c *commands) pull() *cobra.Command {
	var r remote
	var from, image, out string
	cmd := &cobra.Command{
		Use:   "pull (--from REPOSITORY:TAG|@DIGEST | --image REPOSITORY@DIGEST) --out DIR",
		Short: "Fetch a bundle from a registry, or all that are about an image; verifies no signature",
		Long: "With --from, writes the bundle into the directory; with --image, each bundle of the image into a folder of\n" +
			"its own, named by the digest of its manifest. Exit status: 0 written, 1 refused, 3 error.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" || (from == "") == (image == "") {
				return usage("pull needs one place and an output directory", "name them with --from or --image, and --out DIR")
			}
			config, err := r.config()
			if err != nil {
				return err
			}
			ctx, stop := r.context(cmd)
			defer stop()
			const remedy = "check the reference and the registry; what it holds there is no evidence of ours, or is not whole"
			if from != "" {
				b, err := registry.Pull(ctx, config, from)
				if err != nil {
					return refused(err, remedy)
				}
				return c.writeBundle(cmd, b, out)
			}
			found, err := registry.PullImage(ctx, config, image)
			if err != nil {
				return refused(err, remedy)
			}
			for _, f := range found {
				if err := c.writeBundle(cmd, f.Bundle, filepath.Join(out, strings.TrimPrefix(f.Digest, "sha256:"))); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "reference of a bundle")
	cmd.Flags().StringVar(&image, "image", "", "image by manifest digest")
	cmd.Flags().StringVar(&out, "out", "", "new directory")
	r.flags(cmd)
	return cmd
}

func readBundle(dir string) (*evidence.Bundle, error) {
	if err := bundlesExist([]string{dir}); err != nil {
		return nil, err
	}
	b, err := evidence.ReadBundle(dir, evidence.AuditDepth)
	if err != nil {
		return nil, refused(err, "name a whole bundle directory")
	}
	return b, nil
}

func (c *commands) writeBundle(cmd *cobra.Command, b *evidence.Bundle, dir string) error {
	if err := b.Write(dir); err != nil {
		return failed(err, "name a new directory")
	}
	fmt.Fprintln(cmd.OutOrStdout(), dir)
	fmt.Fprintln(cmd.ErrOrStderr(), "nothing of this was verified: ask `hallmark gate`")
	return nil
}

// writeNew writes a file that must not exist, and leaves none behind when it fails.
func writeNew(path string, write func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
