// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

const killEnv = "HALLMARK_STATE_TEST_KILL"

// rounds is how often the child is killed; `go test -run Kill -args -rounds 500` for a long one.
var rounds = flag.Int("rounds", 15, "kills of TestKillDuringCommits")

// Of the store of the test, small so that both bounds are met.
const (
	killNonces = 1200
	killShare  = 400
)

func killOptions() Options {
	return Options{Mode: api.Production, Nonces: killNonces, NoncesPerWorkspace: killShare}
}

// killed is the child: it consumes nonces and puts records until it is killed, and prints each
// line only after the store has acknowledged what the line says.
func killed(dir, round string) error {
	st, err := Open(dir, killOptions())
	if err != nil {
		return err
	}
	exp := time.Now().Add(time.Hour).UnixMilli()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				id, ws := fmt.Sprintf("%s-%d-%d", round, worker, i), fmt.Sprint("ws-", (worker+i)%4)
				switch err := st.ConsumeNonce(context.Background(), id, ws, exp); {
				case err == nil:
					fmt.Println("nonce", id, ws)
				case errors.Is(err, ErrExhausted):
					fmt.Println("full", id, ws)
				default:
					fmt.Println("failed", id, err)
				}
				if err := st.Put(context.Background(), "b", id, []byte(ws)); err == nil {
					fmt.Println("record", id, ws)
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// The child is killed with SIGKILL in the middle of its commits, again and again. Every nonce that
// it acknowledged is refused afterwards, every record is there, and the bounds hold.
func TestKillDuringCommits(t *testing.T) {
	dir := t.TempDir() + "/s"
	acknowledged, share, records := map[string]bool{}, map[string]int{}, map[string]string{}
	sawFull := false
	for round := range *rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+dir, "ROUND="+fmt.Sprint(round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for in := bufio.NewScanner(out); in.Scan(); lines++ {
			switch f := strings.Fields(in.Text()); f[0] {
			case "nonce":
				acknowledged[f[1]] = true
				share[f[2]]++
			case "record":
				records[f[1]] = f[2]
			case "full":
				sawFull = true
			default:
				t.Errorf("round %d: %s", round, in.Text())
			}
			if lines == 150+31*(round%15) { // then what is in the pipe is read to its end
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		st, err := Open(dir, killOptions())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		exp := time.Now().Add(time.Hour).UnixMilli()
		for id := range acknowledged {
			if err := st.ConsumeNonce(t.Context(), id, "ws-0", exp); !errors.Is(err, ErrReplay) {
				t.Fatalf("round %d: nonce %s after the kill: %v", round, id, err)
			}
		}
		for id, want := range records {
			if got, err := st.Get(t.Context(), "b", id); err != nil || string(got) != want {
				t.Fatalf("round %d: record %s after the kill: %q, %v", round, id, got, err)
			}
		}
		// A nonce may be durable though the child had no time to say so, never the other way.
		if st.Nonces() < len(acknowledged) || st.Nonces() > killNonces {
			t.Errorf("round %d: %d nonces, %d acknowledged", round, st.Nonces(), len(acknowledged))
		}
		for ws, n := range share {
			if n > killShare || st.nonces.perWorkspace[ws] < n || st.nonces.perWorkspace[ws] > killShare {
				t.Errorf("round %d: %s has %d, %d acknowledged", round, ws, st.nonces.perWorkspace[ws], n)
			}
		}
		if err := errors.Join(st.Check(t.Context()), st.Close()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	t.Logf("%d kills, %d nonces acknowledged, %d records, full seen: %t", *rounds, len(acknowledged), len(records), sawFull)
	if len(acknowledged) < 100 || !sawFull && *rounds >= 15 {
		t.Error("hardly anything was acknowledged, or the bounds were never met")
	}
}
