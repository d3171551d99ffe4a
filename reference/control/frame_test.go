// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

// golden are whole frames. A change of any of them is a new version of the format.
var golden = []struct {
	name string
	f    Frame
	hex  string
}{
	{"ping", Frame{Ping, 1, nil}, "01010000" + "00000000" + "0000000000000001"},
	{"exec", Frame{Exec, 2, (&Spawn{ID: "i", Argv: []string{"sh", ""}, Cwd: "d", Stdin: []byte{0}, Timeout: time.Second, MaxOutput: 5}).Encode()},
		"01020000" + "00000022" + "0000000000000002" + "000003e8" + "0000000000000005" + "0169" + "0002" + "00000002" + "7368" + "00000000" + "000164" + "0000000100"},
	{"exec with a secret", Frame{ExecSecret, 2, (&Spawn{ID: "i", Argv: []string{"x"}, Timeout: time.Second, MaxOutput: 5, Secret: Secret("HMC1")}).Encode()},
		"01060000" + "00000023" + "0000000000000002" + "00000004" + "484d4331" + "000003e8" + "0000000000000005" + "0169" + "0001" + "00000001" + "78" + "0000" + "00000000"},
	{"cancel", Frame{Cancel, 2, nil}, "01030000" + "00000000" + "0000000000000002"},
	{"output", Frame{Output, 2, []byte("\x01hi")}, "01830000" + "00000003" + "0000000000000002" + "016869"},
	{"outcome", Frame{Result, 2, (&Summary{TruncatedStderr: true, Proven: true, ExitCode: 7, Duration: time.Millisecond, Stdout: 2, Dropped: 3, Killed: 4}).Encode()},
		"01840000" + "0000002c" + "0000000000000002" + "0c00" + "0007" + "00000000000003e8" + "0000000000000002" + "0000000000000000" + "0000000000000003" + "0000000000000004"},
	{"spawn failed", Frame{SpawnFailed, 2, EncodeSpawnFailed(StepCwd, 2)}, "01850000" + "00000005" + "0000000000000002" + "0200000002"},
	{"statfs", Frame{StatFSReply, 3, Statfs{1, 2, 3}.Encode()}, "01860000" + "00000018" + "0000000000000003" + "0000000000000001" + "0000000000000002" + "0000000000000003"},
	{"stats", Frame{StatsReply, 3, EncodeCounters(map[string]uint64{"b": 1, "a": 2})}, "01870000" + "00000016" + "0000000000000003" + "0002" + "0161" + "0000000000000002" + "0162" + "0000000000000001"},
}

func TestGolden(t *testing.T) {
	for _, tt := range golden {
		t.Run(tt.name, func(t *testing.T) {
			if got := hex.EncodeToString(Append(nil, tt.f)); got != tt.hex {
				t.Fatalf("%s\nwant %s", got, tt.hex)
			}
			b, err := hex.DecodeString(tt.hex)
			if err != nil {
				t.Fatal(err)
			}
			got, err := read(bytes.NewReader(b), tt.f.Type < 0x80)
			if err != nil || got.Type != tt.f.Type || got.Request != tt.f.Request || !bytes.Equal(got.Payload, tt.f.Payload) {
				t.Fatalf("%+v %v", got, err)
			}
		})
	}
	var challenge [ChallengeSize]byte
	for i := range challenge {
		challenge[i] = byte(i)
	}
	const mac = "f4f2a27016491501f668281ccb183dfba6f90cd37fbb5a2a8330c92d4c84a6b3"
	got := hex.EncodeToString(AppendRequest(nil, &challenge, 3, Frame{Ping, 1, nil})[HeaderSize:])
	if got != mac {
		t.Errorf("MAC %s, want %s", got, mac)
	}
}

func TestBadFrames(t *testing.T) {
	ping := Append(nil, Frame{Ping, 1, nil})
	with := func(at int, v ...byte) []byte {
		b := bytes.Clone(ping)
		copy(b[at:], v)
		return b
	}
	for _, tt := range []struct {
		name string
		b    []byte
	}{
		{"version", with(0, 2)}, {"unknown type", with(1, 0x7f)}, {"a reply's type", with(1, byte(Pong))},
		{"reserved", with(2, 1)}, {"length where none may be", with(4, 0, 0, 0, 1)},
		{"2^31-1", with(4, 0x7f, 0xff, 0xff, 0xff)}, {"2^32-1", with(4, 0xff, 0xff, 0xff, 0xff)},
		{"exec too short", with(1, byte(Exec), 0, 0, 0, 0, 0, 1)}, {"exec too long", with(1, byte(Exec), 0, 0, 0xff, 0, 0, 0)},
		{"request 0", with(8, make([]byte, 8)...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			allocs := testing.AllocsPerRun(1, func() {
				if _, err := ReadPlainRequest(bytes.NewReader(tt.b)); !errors.Is(err, ErrFrame) {
					t.Errorf("%v", err)
				}
			})
			if allocs > 20 {
				t.Errorf("%v allocations", allocs)
			}
		})
	}
	if _, err := ReadPlainRequest(bytes.NewReader(ping[:9])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
	if _, err := ReadPlainRequest(bytes.NewReader(nil)); err != io.EOF {
		t.Errorf("empty: %v", err)
	}
}

func TestSpawnBounds(t *testing.T) {
	good := func() Spawn { return Spawn{Argv: []string{"x"}, Timeout: time.Second, MaxOutput: 1} }
	for _, tt := range []struct {
		name   string
		change func(*Spawn)
		ok     bool
	}{
		{"good", func(*Spawn) {}, true},
		{"256 arguments", func(s *Spawn) { s.Argv = strings.Split(strings.Repeat("x,", 255)+"x", ",") }, true},
		{"257 arguments", func(s *Spawn) { s.Argv = strings.Split(strings.Repeat("x,", 256)+"x", ",") }, false},
		{"64 KiB", func(s *Spawn) { s.Argv = []string{strings.Repeat("x", 64<<10)} }, true},
		{"more than 64 KiB", func(s *Spawn) { s.Argv = []string{"x", strings.Repeat("x", 64<<10)} }, false},
		{"no argument", func(s *Spawn) { s.Argv = nil }, false},
		{"empty command", func(s *Spawn) { s.Argv = []string{"", "x"} }, false},
		{"NUL", func(s *Spawn) { s.Argv = []string{"x\x00y"} }, false},
		{"1 MiB of stdin", func(s *Spawn) { s.Stdin = make([]byte, 1<<20) }, true},
		{"more stdin", func(s *Spawn) { s.Stdin = make([]byte, 1<<20+1) }, false},
		{"no time", func(s *Spawn) { s.Timeout = 0 }, false},
		{"too much time", func(s *Spawn) { s.Timeout = MaxTimeout + 1 }, false},
		{"no output", func(s *Spawn) { s.MaxOutput = 0 }, false},
		{"too much output", func(s *Spawn) { s.MaxOutput = MaxOutput + 1 }, false},
		{"long id", func(s *Spawn) { s.ID = strings.Repeat("x", MaxID+1) }, false},
		{"deep cwd", func(s *Spawn) { s.Cwd = "a/./b..c" }, true},
		{"absolute cwd", func(s *Spawn) { s.Cwd = "/proc" }, false},
		{"cwd up", func(s *Spawn) { s.Cwd = "a/../../proc/self/fd/7" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := good()
			tt.change(&s)
			if err := s.Check(); (err == nil) != tt.ok {
				t.Fatalf("%v", err)
			}
			if !tt.ok {
				return
			}
			got, err := ParseSpawn(s.Type(), s.Encode())
			if len(got.Stdin) == 0 {
				got.Stdin = s.Stdin
			}
			if err != nil || !reflect.DeepEqual(got, s) {
				t.Errorf("%v", err)
			}
			if _, err := ParseSpawn(s.Type(), append(s.Encode(), 0)); !errors.Is(err, ErrFrame) {
				t.Errorf("trailing byte: %v", err)
			}
		})
	}
}

func TestSignalNames(t *testing.T) {
	for n, want := range map[uint8]string{1: "SIGHUP", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM", 17: "SIGCHLD", 19: "SIGSTOP", 31: "SIGSYS", 34: "SIGRT34", 64: "SIGRT64"} {
		if got := signalName(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
