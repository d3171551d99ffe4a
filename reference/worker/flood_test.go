// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// Bounds of a worker under flood. Descriptors: its connections, one more for each of three
// listeners, and what the process itself has open (store, lock, log, epoll, the files of TLS).
const (
	floodVariable    = "HALLMARK_TEST_FLOODED"
	floodDescriptors = DefaultConnections + 3 + 32
	floodPeakBytes   = 256 << 20 // measured: 70 to 110 MiB
	floodConnections = 10_000
	floodPatience    = 3 * time.Minute // of a caller behind thousands; seconds on an idle machine
	noDescriptor     = "too many open files"
)

// flooded is what the worker in a process of its own tells its test.
type flooded struct {
	Socket, TLS, Cleartext string
	WorkerKey, Authority   []byte
}

// TestFloodedWorker is the worker of the test below. Its limit on descriptors is the proof that it
// needs no more: one too many and a legitimate call, or accept, fails and is logged.
func TestFloodedWorker(t *testing.T) {
	if os.Getenv(floodVariable) == "" {
		t.Skip("it is started by TestFlood")
	}
	ca := newAuthority(t)
	cert, key := ca.leaf(named("worker.test"))
	files := TLS{Address: "127.0.0.1:0", Certificate: filepath.Join(t.TempDir(), "cert"), Key: filepath.Join(t.TempDir(), "key")}
	writeFile(t, files.Certificate, cert)
	writeFile(t, files.Key, key)
	secure, err := ListenTLS(t.Context(), files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	clear, err := ListenUnsafeCleartextLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: floodDescriptors, Max: floodDescriptors}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, tweak{listeners: []net.Listener{secure, clear}, logged: noDescriptor})
	b, err := json.Marshal(flooded{
		Socket: r.cfg.Socket, TLS: secure.Addr().String(), Cleartext: clear.Addr().String(), WorkerKey: r.cfg.WorkerKey, Authority: r.cfg.Key,
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s\n", b)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until the test is done
		t.Error(err)
	}
	if r.log.String() != "" {
		t.Error("descriptors ran out")
	}
}

// status reads a line of /proc/PID/status, in kB.
func status(t *testing.T, pid int, name string) (kb int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), name+":")
	if _, err := fmt.Sscan(rest, &kb); !ok || err != nil {
		t.Fatalf("no %s: %v", name, err)
	}
	return kb
}

// TestFlood opens 10,000 connections to a worker with room for 128, over all its listeners: silent
// ones, halves of a header, of a handshake and of a frame, pipelines whose answers nobody reads, and
// streams without a capability. All of them stay as long as the worker lets them. Callers with
// a capability are served throughout, on the socket and on the flooded ports; descriptors and
// the peak of memory stay within their bounds.
func TestFlood(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestFloodedWorker$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), floodVariable+"=1")
	var diagnostics bytes.Buffer
	cmd.Stderr = &diagnostics
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	defer func() {
		_ = in.Close()
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the worker: %v\n%s%s", err, rest, diagnostics.String())
		}
	}()
	var w flooded
	for w.TLS == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the worker did not start: %v", err)
		}
		_ = json.Unmarshal([]byte(line), &w) // other lines are the test's own
	}
	caller, err := client.New(client.Config{
		Socket: w.Socket, WorkerID: "worker-1", WorkerKey: w.WorkerKey, Issuer: "control", KeyID: "k1", Key: w.Authority,
	})
	if err != nil {
		t.Fatal(err)
	}
	quiet := status(t, cmd.Process.Pid, "VmHWM")

	stop := make(chan struct{})
	var attackers sync.WaitGroup
	var opened atomic.Int64
	shapes := strangers(t)
	next := make(chan int)
	for range 200 {
		attackers.Go(func() {
			for i := range next {
				network, address := "tcp", w.Cleartext
				switch {
				case i%3 == 0:
					network, address = "unix", w.Socket
				case i%3 == 1:
					address = w.TLS
				}
				c, err := net.DialTimeout(network, address, 10*time.Second)
				if err != nil {
					continue // the kernel's queue is full: that is the kernel's bound
				}
				opened.Add(1)
				attackers.Go(func() {
					defer c.Close()
					_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
					_, _ = c.Write(shapes[i%len(shapes)])
					<-stop // and nothing is ever read
				})
			}
		})
	}
	flood := make(chan struct{})
	go func() {
		defer close(flood)
		for i := range floodConnections {
			next <- i
		}
		close(next)
	}()
	served := 0
	for done := false; !done; served++ {
		select {
		case <-flood:
			done = true // and one call more, with all of them there
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), floodPatience)
		if _, err := caller.Get(ctx, "ws", "sb"); err != nil {
			// Unix sockets have no queue behind the queue: connect(2) says EAGAIN at once.
			if !strings.Contains(err.Error(), "resource temporarily unavailable") {
				t.Errorf("a caller on the socket: %v", err)
				done = true
			}
			served--
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		if err := getOver(t, caller, w.Cleartext); err != nil {
			t.Errorf("a caller on a flooded port: %v", err)
			done = true
		}
	}
	peak := status(t, cmd.Process.Pid, "VmHWM")
	close(stop)
	attackers.Wait()
	t.Logf("%d connections, %d calls served meanwhile, peak %d MiB (%d MiB before)", opened.Load(), served, peak>>10, quiet>>10)
	if peak<<10 > floodPeakBytes {
		t.Errorf("peak of %d MiB", peak>>10)
	}
	if served == 0 || opened.Load() < floodConnections*9/10 {
		t.Errorf("%d connections, %d calls: this was no flood", opened.Load(), served)
	}
	if _, err := caller.Get(t.Context(), "ws", "sb"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// strangers are what connections without a capability send.
func strangers(t *testing.T) [][]byte {
	t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "w"}, {":path", "/v1/health"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	// The largest list that is parsed, out of few bytes: one byte names a field of 63.
	head := append(bytes.Clone(block.Bytes()), bytes.Repeat([]byte{0x80 | 16}, 1000)...)
	frames := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	for i := range 2 * maxStreams {
		frames = append(frames, 0, byte(len(head)>>8), byte(len(head)), 1, 5, 0, 0, 0, byte(2*i+1))
		frames = append(frames, head...)
	}
	return [][]byte{
		nil,
		[]byte("GET /v1/health HTTP/1.1\r\nHost: w\r\nX:"),
		[]byte("GET /v1/health HTTP/1.1\r\nHost: w\r\nX: " + strings.Repeat("a", 60_000)),
		bytes.Repeat([]byte(healthz), 5000),
		[]byte("POST /v1/sandboxes HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer a.b.c\r\nContent-Length: 2000000\r\n\r\n" + strings.Repeat("a", 200_000)),
		[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03half of a hello"),
		frames,
		frames[:len(frames)-10],
	}
}

// getOver is one call with a capability over TCP.
func getOver(t *testing.T, caller *client.Client, address string) error {
	t.Helper()
	req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token, err := caller.Mint(t.Context(), req)
	if err != nil {
		return nil // the socket's queue was full; nothing was asked of this port
	}
	c, err := net.DialTimeout("tcp", address, floodPatience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(floodPatience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", req.Target, token); err != nil {
		return err
	}
	b, err := io.ReadAll(c)
	if err == nil && !bytes.HasPrefix(b, []byte("HTTP/1.1 200 ")) {
		err = fmt.Errorf("answered %.200q", b)
	}
	return err
}
