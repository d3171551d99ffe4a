// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// BenchmarkOpen100000Nonces is a start with a full store; bbolt-check is the part of bbolt's own.
func BenchmarkOpen100000Nonces(b *testing.B) {
	dir, o := b.TempDir()+"/s", Options{Mode: api.Production, NoncesPerWorkspace: DefaultNonces}
	s, err := Open(dir, o)
	if err != nil {
		b.Fatal(err)
	}
	exp := time.Now().Add(time.Hour).UnixMilli()
	var n atomic.Int64
	var wg sync.WaitGroup
	for range maxBatch {
		wg.Go(func() {
			for i := n.Add(1); i <= DefaultNonces; i = n.Add(1) {
				if err := s.ConsumeNonce(context.Background(), fmt.Sprintf("%032d", i*1_000_003), "workspace", exp); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.Run("open", func(b *testing.B) {
		for range b.N {
			s, err := Open(dir, o)
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if s.Nonces() != DefaultNonces {
				b.Fatalf("%d nonces", s.Nonces())
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("bbolt-check", func(b *testing.B) {
		s, err := Open(dir, o)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		for range b.N {
			if err := s.db.View(pagesHold); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSync is what the disk itself takes: a commit has two of these.
func BenchmarkSync(b *testing.B) {
	f, err := os.Create(b.TempDir() + "/f")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page, took := make([]byte, 4096), make([]time.Duration, b.N)
	b.ResetTimer()
	for i := range b.N {
		start := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		took[i] = time.Since(start)
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-µs")
}
