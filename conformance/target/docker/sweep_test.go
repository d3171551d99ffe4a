// SPDX-License-Identifier: Apache-2.0

package docker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
)

// victimEnv makes this program a run of the suite that is killed: it opens the target, creates a
// sandbox with a command in it, says so, and waits.
const victimEnv = "HALLMARK_DOCKER_TEST_VICTIM"

type order struct {
	Config     json.RawMessage
	Dir, Image string
}

func victim() {
	var o order
	err := json.Unmarshal([]byte(os.Getenv(victimEnv)), &o)
	var tg *target.Target
	if err == nil {
		tg, err = docker.Open(context.Background(), o.Config, o.Dir)
	}
	var sb target.Sandbox
	if err == nil {
		sb, err = tg.Runtime.Create(context.Background(), target.Spec{Image: o.Image})
	}
	if err == nil {
		go sb.Exec(context.Background(), target.Command{Argv: []string{"/bin/sleep", "200"}, Timeout: time.Minute})
		var c target.Container
		if c, err = tg.Observer.Container(context.Background(), sb.ID()); err == nil {
			parent, _ := tg.Observer.CgroupParent()
			fmt.Println("ready", c.ID, parent)
			select {}
		}
	}
	fmt.Println("error", err)
	os.Exit(1)
}

func TestAKilledRunIsSwept(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		bystander := b.bystander()
		living := b.sandbox(b.openRun(), target.Spec{})
		raw, err := json.Marshal(b.config)
		if err != nil {
			t.Fatal(err)
		}
		dir, lock := b.run()
		text, err := json.Marshal(order{raw, dir, b.image})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimEnv+"="+string(text))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		cmd.Process.Kill()
		cmd.Wait()
		said := strings.Fields(line)
		if err != nil || len(said) != 3 || said[0] != "ready" {
			t.Fatalf("the victim says %q, %v", line, err)
		}
		id, parent := said[1], said[2]
		if in, err := b.cli.ContainerInspect(b.Context(), id); err != nil || !in.State.Running {
			t.Fatalf("the killed run's container does not run: %v", err)
		}
		stranger := filepath.Join(b.runs, "stranger") // a folder without a record is nobody's
		if err := os.Mkdir(stranger, 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(stranger)

		lock.Close()
		b.openRun()
		if _, err := b.cli.ContainerInspect(b.Context(), id); err == nil {
			t.Error("the container is still there")
		}
		if left := cgroups(parent); len(left) > 0 {
			t.Errorf("cgroups are still there: %v", left)
		}
		if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the killed run's folder: %v", err)
		}
		if _, err := os.Stat(stranger); err != nil {
			t.Errorf("a folder without a record: %v", err)
		}
		if got := b.sh(living, "echo here"); got != "here" {
			t.Errorf("a living run's sandbox says %q", got)
		}
		b.running(bystander)
	})
}

// relay stands before the engine's socket until it is cut.
type relay struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
}

func newRelay(t *testing.T, to string) (r *relay, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hlk-relay-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r = &relay{listener: l}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			go func() { io.Copy(out, in); out.(*net.UnixConn).CloseWrite() }()
			go func() { io.Copy(in, out); in.Close() }()
		}
	}()
	t.Cleanup(r.cut)
	return r, socket
}

// cut is the engine's sudden death, as its client sees it.
func (r *relay) cut() {
	r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func TestAnEngineThatIsGoneIsNamed(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	r, socket := newRelay(t, b.lab.Socket)
	real := b.config
	b.config.Socket = socket
	dir, lock := b.run()
	tg, err := b.tryOpen(dir)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := tg.Runtime.Create(t.Context(), target.Spec{Image: b.image})
	if err != nil {
		t.Fatal(err)
	}
	id := b.container(tg, sb).ID
	time.AfterFunc(time.Second, r.cut)
	_, err = sb.Exec(t.Context(), target.Command{Argv: []string{"/bin/sleep", "60"}})
	b.want("exec while the engine dies", err, docker.CodeEngineUnreachable, "")
	_, err = sb.Exec(t.Context(), target.Command{Argv: []string{"/bin/true"}})
	b.want("exec", err, docker.CodeEngineUnreachable, "")
	_, err = tg.Runtime.Create(t.Context(), target.Spec{Image: b.image, WorkspaceID: "w"})
	b.want("create", err, docker.CodeEngineUnreachable, "")
	_, err = tg.Runtime.Describe(t.Context())
	b.want("describe", err, docker.CodeEngineUnreachable, "")
	b.want("dispose", sb.Dispose(t.Context()), docker.CodeEngineUnreachable, "")
	_, err = sb.State(t.Context())
	b.want("state", err, docker.CodeEngineUnreachable, "")
	if err := tg.Close(); err == nil {
		t.Error("close without an engine proves nothing and says nothing")
	}
	_, err = b.tryOpen(b.dir())
	b.want("open", err, docker.CodeEngineUnreachable, "")

	// What it owned is still recorded: here its owner lives, so the test removes it by its label.
	b.config = real
	text, err := os.ReadFile(filepath.Join(dir, "owner.json"))
	if err != nil {
		t.Fatalf("the record is gone, and the container is not: %v", err)
	}
	in, err := b.cli.ContainerInspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if label := in.Config.Labels["hallmark-docker.run"]; label == "" || !strings.Contains(string(text), label) {
		t.Errorf("the record does not name the container's label %q: %s", label, text)
	}
	dead := strings.Replace(strings.Replace(string(text), socket, b.lab.Socket, 1), `"start":"`, `"start":"0`, 1)
	if err := os.WriteFile(filepath.Join(dir, "owner.json"), []byte(dead), 0o600); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	b.openRun() // sweeps it now that its owner's start time is nobody's
	if _, err := b.cli.ContainerInspect(t.Context(), id); err == nil {
		t.Error("the container is still there")
	}
}
