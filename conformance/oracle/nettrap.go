// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SinkAddress stands for "anywhere outside": a documentation address (RFC 5737) that a trap adds
// to the loopback of its namespace, so that a packet routed out of a container meets a listener.
const SinkAddress = "198.51.100.77"

// OutsideAddress is another documentation address, which nobody has: frames to it are only ever
// captured.
const OutsideAddress = "203.0.113.9"

// attackType is the experimental ethertype (IEEE 802) of the attack's own frames.
const attackType = 0x88b5

// maxEvents bounds what a trap keeps of all events, and again of those that it lays to the attack;
// it goes on counting.
const maxEvents = 4096

// TrapEvent is one thing that reached a trap. From names the listener ("tcp", "udp") or
// "capture"; Token says that the payload held the trap's token.
type TrapEvent struct {
	From  string
	Peer  string // sender's address and port, or the frame's addresses
	Token bool
	Head  string // hex of the first 64 bytes

	to netip.Addr // of a captured IP packet
	by uint16     // ethertype of a captured frame
}

// Trap listens on every address of a network namespace, on one TCP and one UDP port, and captures
// every frame on all its interfaces but loopback.
type Trap struct {
	TCPPort, UDPPort int

	token    []byte
	loopback int
	packet   int // AF_PACKET socket
	tcp      *net.TCPListener
	udp      *net.UDPConn
	undo     func() error
	wg       sync.WaitGroup
	stopped  chan struct{}
	addrs    []netip.Addr

	mu     sync.Mutex
	watch  map[netip.Addr]bool // destinations that are the attack's alone
	events []TrapEvent
	seen   []TrapEvent
	total  map[string]int64
}

// SetTrap enters the namespace at path ("" is the caller's), opens the listeners and the capture
// there, and returns. token marks the payloads that belong to the attack. Root only.
func SetTrap(path string, token string) (*Trap, error) {
	if token == "" {
		return nil, errors.New("set trap: no token")
	}
	t := &Trap{token: []byte(token), packet: -1, stopped: make(chan struct{}), total: map[string]int64{}, watch: map[netip.Addr]bool{}}
	t.Watch(netip.MustParseAddr(SinkAddress), netip.MustParseAddr(OutsideAddress))
	err := inNamespace(path, t.open)
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("set trap: %w", err)
	}
	t.wg.Go(t.serveTCP)
	t.wg.Go(t.serveUDP)
	t.wg.Go(t.serveCapture)
	return t, nil
}

// inNamespace runs f on a thread that has entered the network namespace and is thrown away
// afterwards. Sockets made there stay in it.
func inNamespace(path string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		if path != "" {
			runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
			ns, err := os.Open(path)
			if err != nil {
				result <- err
				return
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				result <- fmt.Errorf("setns: %w", err)
				return
			}
		}
		result <- f()
	}()
	return <-result
}

func (t *Trap) open() error {
	undo, err := addSink()
	if err != nil {
		return err
	}
	t.undo = undo
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			t.loopback = i.Index
		}
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		list, err := i.Addrs()
		if err != nil {
			return err
		}
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
				t.addrs = append(t.addrs, p.Addr())
			}
		}
	}
	if t.packet, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	timeout := unix.Timeval{Usec: 100_000}
	if err := unix.SetsockoptTimeval(t.packet, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	if t.tcp, err = net.ListenTCP("tcp", &net.TCPAddr{}); err != nil {
		return err
	}
	if t.udp, err = net.ListenUDP("udp", &net.UDPAddr{}); err != nil {
		return err
	}
	t.TCPPort, t.UDPPort = t.tcp.Addr().(*net.TCPAddr).Port, t.udp.LocalAddr().(*net.UDPAddr).Port
	return nil
}

// Addresses are those of the namespace when the trap was set, the sink included.
func (t *Trap) Addresses() []netip.Addr { return t.addrs }

// Targets are the trap's addresses as the tenant's network attack names them.
func (t *Trap) Targets() []string {
	var list []string
	for _, a := range t.addrs {
		list = append(list,
			"tcp://"+netip.AddrPortFrom(a, uint16(t.TCPPort)).String(),
			"udp://"+netip.AddrPortFrom(a, uint16(t.UDPPort)).String(),
			"quic://"+netip.AddrPortFrom(a, uint16(t.UDPPort)).String(),
			"icmp://"+a.String(), "raw://"+a.String())
	}
	return list
}

// Watch adds destinations that nobody but the attack sends to: a captured packet to one of them
// is laid to the attack even without the token, which a TCP handshake cannot carry. Call it before
// the attack.
func (t *Trap) Watch(addrs ...netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range addrs {
		t.watch[a.Unmap()] = true
	}
}

// Counts returns how many events each part saw: "tcp", "udp", "capture"; "tcp-token", "udp-token",
// "capture-token" for those with the token; and "attack" for all that are laid to the attack.
// Nothing bounds a count.
func (t *Trap) Counts() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.total)
}

// Token marks the attack's payloads.
func (t *Trap) Token() string { return string(t.token) }

// Seen returns the first events that an attack with this token can have caused: a payload with the
// token, any contact with a listener, any captured packet to a watched destination (the sink and
// the outside address are), and any frame of the attack's ethertype. Their number is
// Counts()["attack"].
func (t *Trap) Seen() []TrapEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.seen)
}

// Events returns the first events of all.
func (t *Trap) Events() []TrapEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.events)
}

// Close ends the trap and takes the sink address away. It is idempotent.
func (t *Trap) Close() error {
	select {
	case <-t.stopped:
		return nil
	default:
		close(t.stopped)
	}
	if t.tcp != nil {
		t.tcp.Close()
	}
	if t.udp != nil {
		t.udp.Close()
	}
	t.wg.Wait()
	if t.packet >= 0 {
		unix.Close(t.packet)
	}
	if t.undo != nil {
		return t.undo()
	}
	return nil
}

func (t *Trap) add(e TrapEvent, payload []byte) {
	e.Token = bytes.Contains(payload, t.token)
	e.Head = hex.EncodeToString(payload[:min(len(payload), 64)])
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total[e.From]++
	if e.Token {
		t.total[e.From+"-token"]++
	}
	if len(t.events) < maxEvents {
		t.events = append(t.events, e)
	}
	if e.Token || e.From != "capture" || e.by == attackType || t.watch[e.to] {
		t.total["attack"]++
		if len(t.seen) < maxEvents {
			t.seen = append(t.seen, e)
		}
	}
}

func (t *Trap) serveTCP() {
	for {
		c, err := t.tcp.Accept()
		if err != nil {
			return
		}
		t.wg.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Second))
			buf := make([]byte, 2048)
			n, _ := c.Read(buf)
			t.add(TrapEvent{From: "tcp", Peer: c.RemoteAddr().String()}, buf[:n])
		})
	}
}

func (t *Trap) serveUDP() {
	buf := make([]byte, 2048)
	for {
		n, peer, err := t.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		t.add(TrapEvent{From: "udp", Peer: peer.String()}, buf[:n])
	}
}

func (t *Trap) serveCapture() {
	buf := make([]byte, 4096)
	for {
		select {
		case <-t.stopped:
			return
		default:
		}
		n, from, err := unix.Recvfrom(t.packet, buf, 0)
		if err != nil {
			continue // the receive time-out, which lets the loop see the stop
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Ifindex == t.loopback {
			continue
		}
		e := describeFrame(buf[:n])
		e.From = "capture"
		t.add(e, buf[:n])
	}
}

// describeFrame reads the addresses and the protocol of a frame.
func describeFrame(f []byte) TrapEvent {
	if len(f) < 14 {
		return TrapEvent{Peer: "short"}
	}
	kind := binary.BigEndian.Uint16(f[12:])
	switch body := f[14:]; {
	case kind == unix.ETH_P_IP && len(body) >= 20:
		src, dst := netip.AddrFrom4([4]byte(body[12:16])), netip.AddrFrom4([4]byte(body[16:20]))
		return TrapEvent{Peer: fmt.Sprintf("%s > %s proto %d", src, dst, body[9]), to: dst, by: kind}
	case kind == unix.ETH_P_IPV6 && len(body) >= 40:
		src, dst := netip.AddrFrom16([16]byte(body[8:24])), netip.AddrFrom16([16]byte(body[24:40]))
		return TrapEvent{Peer: fmt.Sprintf("%s > %s proto %d", src, dst, body[6]), to: dst, by: kind}
	case kind == unix.ETH_P_ARP && len(body) >= 28: // who asks for a watched address, means it
		src, dst := netip.AddrFrom4([4]byte(body[14:18])), netip.AddrFrom4([4]byte(body[24:28]))
		return TrapEvent{Peer: fmt.Sprintf("%s > %s arp", src, dst), to: dst, by: kind}
	}
	return TrapEvent{Peer: fmt.Sprintf("ethertype %#04x", kind), by: kind}
}

// Interface is one interface of a network namespace.
type Interface struct {
	Name     string `json:"name"`
	Up       bool   `json:"up"`
	Loopback bool   `json:"loopback"`
}

// Interfaces lists those of the namespace at path, as the kernel says on the host. Modules of the
// kernel put some that are down into every namespace.
func Interfaces(path string) (list []Interface, err error) {
	err = inNamespace(path, func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			list = append(list, Interface{i.Name, i.Flags&net.FlagUp != 0, i.Flags&net.FlagLoopback != 0})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return list, nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// addSink gives the loopback interface a second address by the old alias interface
// (netdevice(7)): it goes away with the alias, whatever else is configured.
func addSink() (undo func() error, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var req struct {
		name [unix.IFNAMSIZ]byte
		data [24]byte
	}
	copy(req.name[:], "lo:hallmark")
	ioctl := func(nr uintptr) error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), nr, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return errno
		}
		return nil
	}
	sink := netip.MustParseAddr(SinkAddress).As4()
	binary.NativeEndian.PutUint16(req.data[:], unix.AF_INET)
	copy(req.data[4:], sink[:])
	if err := ioctl(unix.SIOCSIFADDR); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("add sink address: %w", err)
	}
	copy(req.data[4:], []byte{255, 255, 255, 255})
	if err := ioctl(unix.SIOCSIFNETMASK); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set sink mask: %w", err)
	}
	// The socket stays: it is how the address is removed from the right namespace later.
	return func() error {
		defer unix.Close(fd)
		req.data = [24]byte{}
		if err := ioctl(unix.SIOCSIFFLAGS); err != nil { // flags 0: the alias goes down and away
			return fmt.Errorf("remove sink address: %w", err)
		}
		return nil
	}, nil
}
