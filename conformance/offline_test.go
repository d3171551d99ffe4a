// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance"
)

// offlineEnv makes this test program run the options of a file in the network namespace that it is
// started in. With "dial" in place of a file it tries to reach somebody instead.
const offlineEnv = "HALLMARK_TEST_OFFLINE"

// offlineReport is what it prints.
type offlineReport struct {
	Passed      int64
	Verdict     string
	Unreachable map[string]int64 // attempts to send to an address without a route, as the kernel counts them
}

func offlineMain(file string) {
	err := func() error {
		if err := loopbackUp(); err != nil {
			return err
		}
		var r offlineReport
		if file == "dial" {
			for network, address := range map[string]string{"tcp4": "192.0.2.1:80", "udp4": "192.0.2.1:53", "tcp6": "[2001:db8::1]:80"} {
				if c, err := net.DialTimeout(network, address, time.Second); err == nil {
					c.Close()
					return fmt.Errorf("%s is there", address)
				}
			}
		} else {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			var o conformance.Options
			if err := json.Unmarshal(b, &o); err != nil {
				return err
			}
			o.Suite = procSuite()
			out, err := conformance.Run(context.Background(), o)
			if err != nil {
				return err
			}
			r.Passed, r.Verdict = out.Report.Counts.Pass, fmt.Sprintf("%s %q", out.Report.Verdict, out.Faults)
		}
		var err error
		if r.Unreachable, err = unreachable(); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// loopbackUp is the only interface of a new namespace: Ginkgo's processes talk over it.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// unreachable reads OutNoRoutes of IPv4 and IPv6: RFC 4293, ipSystemStatsOutNoRoutes.
func unreachable() (map[string]int64, error) {
	out := map[string]int64{}
	v4, err := os.ReadFile("/proc/self/net/snmp")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(v4)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Ip:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			if name == "OutNoRoutes" {
				out["ipv4"], err = strconv.ParseInt(f[i], 10, 64)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	v6, err := os.ReadFile("/proc/self/net/snmp6")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(v6)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "Ip6OutNoRoutes" {
			out["ipv6"], err = strconv.ParseInt(f[1], 10, 64)
		}
	}
	if len(out) != 2 {
		return nil, fmt.Errorf("the kernel counts %v only", out)
	}
	return out, err
}

// inNewNamespace runs this test program in a network namespace without an interface but loopback.
func inNewNamespace(t *testing.T, what string) offlineReport {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), offlineEnv+"="+what)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r offlineReport
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return r
}

// The suite needs no network and asks for none: in a namespace with a loopback interface alone a run
// goes as ever, and the kernel counts no attempt to reach anything.
func TestRunWithoutANetwork(t *testing.T) {
	for _, procs := range []int{1, 2} {
		t.Run(strconv.Itoa(procs), func(t *testing.T) {
			o := procOptions(t, procs)
			o.Tier = conformance.Full
			o.Suite = conformance.Suite{}
			b, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "options.json")
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			r := inNewNamespace(t, file)
			if r.Passed != 12 {
				t.Errorf("%d cases passed, want 12; %s", r.Passed, r.Verdict)
			}
			if r.Unreachable["ipv4"]+r.Unreachable["ipv6"] != 0 {
				t.Errorf("the run tried to reach somebody: %v", r.Unreachable)
			}
		})
	}
	// The count can rise.
	if r := inNewNamespace(t, "dial"); r.Unreachable["ipv4"] < 2 || r.Unreachable["ipv6"] < 1 {
		t.Errorf("three attempts are counted as %v", r.Unreachable)
	}
}
