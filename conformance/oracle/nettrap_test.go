// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// namespace makes a network namespace that lives until the test's end, with loopback up, and
// returns a path for it and a way to run in it.
func namespace(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("unshare (this test needs root): %w", err)
			return
		}
		if err := setUp("lo"); err != nil {
			result <- err
			return
		}
		result <- unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

// setUp sets IFF_UP of an interface.
func setUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var req [40]byte
	copy(req[:unix.IFNAMSIZ], name)
	binary.NativeEndian.PutUint16(req[unix.IFNAMSIZ:], unix.IFF_UP|unix.IFF_RUNNING)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("set %s up: %w", name, errno)
	}
	return nil
}

func TestTrapSeesWhatIsSent(t *testing.T) {
	path := namespace(t)
	trap, err := SetTrap(path, "token-of-this-test")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	if !slices.Contains(trap.Addresses(), netip.MustParseAddr(SinkAddress)) {
		t.Errorf("the sink is not among %v", trap.Addresses())
	}
	if len(trap.Seen()) != 0 {
		t.Errorf("an idle trap has seen %v", trap.Seen())
	}
	err = inNamespace(path, func() error {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", SinkAddress, trap.TCPPort), time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("a token-of-this-test b")); err != nil {
			return err
		}
		u, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", trap.UDPPort))
		if err != nil {
			return err
		}
		defer u.Close()
		_, err = u.Write([]byte("no mark"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if n := trap.Counts(); n["tcp"] > 0 && n["udp"] > 0 {
			break
		}
	}
	n := trap.Counts()
	if n["tcp"] != 1 || n["tcp-token"] != 1 || n["udp"] != 1 || n["udp-token"] != 0 || len(trap.Seen()) != 2 {
		t.Errorf("counts are %v, seen %v", n, trap.Seen())
	}
}

func TestTrapCapturesFrames(t *testing.T) {
	path := namespace(t)
	trap, err := SetTrap(path, "token-of-this-test")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	trap.Watch(netip.MustParseAddr("192.0.2.201"))
	var tap *os.File
	err = inNamespace(path, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		tap = os.NewFile(uintptr(fd), "tap")
		var req [40]byte
		copy(req[:], "trap0")
		binary.NativeEndian.PutUint16(req[unix.IFNAMSIZ:], unix.IFF_TAP|unix.IFF_NO_PI)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return errno
		}
		return setUp("trap0")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	frame := func(dst string, payload string) []byte {
		f := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1}
		a := netip.MustParseAddr(dst).As4()
		return append(append(f, a[:]...), payload...)
	}
	for _, f := range [][]byte{frame(SinkAddress, "padding padding padding"), frame(OutsideAddress, "padding padding padding"), frame("192.0.2.200", "with token-of-this-test"), frame("192.0.2.200", "somebody else's traffic"), frame("192.0.2.201", "a handshake has no token")} {
		if _, err := tap.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && trap.Counts()["capture"] < 5; {
		time.Sleep(5 * time.Millisecond)
	}
	var seen []string
	for _, e := range trap.Seen() {
		seen = append(seen, e.Peer)
	}
	if len(seen) != 4 || trap.Counts()["attack"] != 4 || !strings.Contains(strings.Join(seen, "|"), "> "+SinkAddress+" ") {
		t.Errorf("seen are %q", seen)
	}
}

func TestTrapCountsBeyondWhatItKeeps(t *testing.T) {
	trap := &Trap{token: []byte("token"), total: map[string]int64{}, watch: map[netip.Addr]bool{}}
	for range maxEvents {
		trap.add(TrapEvent{From: "capture", Peer: "noise"}, []byte("noise"))
	}
	for range maxEvents + 1 {
		trap.add(TrapEvent{From: "capture", Peer: "leak"}, []byte("the token"))
	}
	if n := trap.Counts()["attack"]; n != maxEvents+1 {
		t.Errorf("%d of %d leaks are counted", n, maxEvents+1)
	}
	if seen := trap.Seen(); len(seen) != maxEvents || seen[0].Peer != "leak" {
		t.Errorf("%d leaks are kept behind the noise", len(seen))
	}
}

func TestInterfacesTellUpFromDown(t *testing.T) {
	path := namespace(t)
	list, err := Interfaces(path)
	if err != nil {
		t.Fatal(err)
	}
	up := 0
	for _, i := range list {
		if i.Up {
			up++
		}
		if i.Loopback != (i.Name == "lo") {
			t.Errorf("%+v", i)
		}
	}
	if up != 1 {
		t.Errorf("only lo is up, and %d of %+v are seen so", up, list)
	}
	if _, err := Interfaces("/nonexistent/hallmark"); err == nil {
		t.Error("a namespace that does not exist has interfaces")
	}
}

func TestTrapTakesItsAddressAway(t *testing.T) {
	path := namespace(t)
	addresses := func() (list []string) {
		if err := inNamespace(path, func() error {
			lo, err := net.InterfaceByName("lo")
			if err != nil {
				return err
			}
			all, err := lo.Addrs()
			for _, a := range all {
				list = append(list, a.String())
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return list
	}
	before := addresses()
	trap, err := SetTrap(path, "t")
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(before, addresses()) {
		t.Error("the sink address is not there")
	}
	if err := trap.Close(); err != nil {
		t.Error(err)
	}
	if after := addresses(); !slices.Equal(before, after) {
		t.Errorf("addresses were %v and are %v", before, after)
	}
	if err := trap.Close(); err != nil {
		t.Errorf("the second close: %v", err)
	}
}
