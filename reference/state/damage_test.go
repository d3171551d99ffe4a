// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// sample is a closed store with every kind of page: metas, free list, branches, leaves, a record
// over several pages, and buckets inside a leaf.
type sample struct {
	text    []byte // of the file
	page    int
	records map[string]string // by bucket and key
	nonces  []string
	h       *hand
}

func newSample(t testing.TB) *sample {
	t.Helper()
	dir := t.TempDir() + "/s"
	s := &sample{page: os.Getpagesize(), records: map[string]string{}, h: newHand()}
	st, err := Open(dir, Options{Mode: api.Production, Now: s.h.now})
	if err != nil {
		t.Fatal(err)
	}
	put := func(bucket, key string, value []byte) {
		t.Helper()
		if err := st.Put(t.Context(), bucket, key, value); err != nil {
			t.Fatal(err)
		}
		s.records[bucket+"/"+key] = string(value)
	}
	for i := range 300 {
		id := fmt.Sprintf("nonce-%04d-%s", i*7919%300, strings.Repeat("x", 20))
		if err := st.ConsumeNonce(t.Context(), id, "ws", s.h.in(time.Hour)); err != nil {
			t.Fatal(err)
		}
		s.nonces = append(s.nonces, id)
	}
	put("sandboxes", "one", []byte("small"))
	put("outcomes", "large", bytes.Repeat([]byte("0123456789"), 2000))
	for i := range 40 {
		put("outcomes", fmt.Sprint("row-", i), bytes.Repeat([]byte{byte(i)}, 300))
	}
	if err := st.Delete(t.Context(), "outcomes", "row-7"); err != nil {
		t.Fatal(err)
	}
	delete(s.records, "outcomes/row-7")
	if err := errors.Join(st.Check(t.Context()), st.Close()); err != nil {
		t.Fatal(err)
	}
	if s.text, err = os.ReadFile(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	return s
}

// pages is how many the file has in use; the rest is room.
func (s *sample) pages() int {
	high := 0
	for i := range 2 {
		high = max(high, int(native.Uint64(s.text[i*s.page+pageHead+40:])))
	}
	return high
}

// contents reads what a text holds, as the walk gives it.
func contents(text []byte) (map[string]string, error) {
	out := map[string]string{}
	err := walkFile(bytes.NewReader(text), int64(len(text)), func(b, k, v []byte) error {
		out[string(b)+"/"+string(k)] = string(v)
		return nil
	})
	return out, err
}

// Every byte of every page's head and first elements, and one of eleven of the rest, is damaged in
// turn: what is accepted all the same holds the same records.
func TestEachByteDamaged(t *testing.T) {
	s := newSample(t)
	want, err := contents(s.text)
	if err != nil || len(want) != len(s.records)+len(s.nonces)+2 {
		t.Fatalf("%d records, %v", len(want), err)
	}
	text := bytes.Clone(s.text)
	refused, harmless := 0, 0
	for at := range s.pages() * s.page {
		if at%s.page >= 128 && at%11 != 0 {
			continue
		}
		text[at] ^= 1 << (at % 8)
		if _, err := verify(bytes.NewReader(text), int64(len(text))); err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("byte %d: %v", at, err)
			}
			refused++
		} else if got, err := contents(text); err != nil || !maps.Equal(got, want) {
			t.Fatalf("byte %d of page %d: accepted with other records, %v", at%s.page, at/s.page, err)
		} else {
			harmless++
		}
		text[at] = s.text[at]
	}
	t.Logf("%d pages: %d bytes refused, %d unused", s.pages(), refused, harmless)
	if refused < len(s.nonces)*10 {
		t.Errorf("%d of %d bytes were refused", refused, refused+harmless)
	}
}

// Each page is damaged in turn and the directory opened: it is refused with the file as it was,
// or everything that was acknowledged is there.
func TestEachPageDamaged(t *testing.T) {
	s := newSample(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	page := func(text []byte, i int) []byte { return text[i*s.page : (i+1)*s.page] }
	kinds := []struct {
		name   string
		damage func(text []byte, i int) []byte
	}{
		{"zeroed", func(x []byte, i int) []byte { clear(page(x, i)); return x }},
		{"all ones", func(x []byte, i int) []byte { copy(page(x, i), bytes.Repeat([]byte{0xff}, s.page)); return x }},
		{"random", func(x []byte, i int) []byte {
			for j := range page(x, i) {
				page(x, i)[j] = byte(random.Uint32())
			}
			return x
		}},
		{"sixteen bytes flipped", func(x []byte, i int) []byte {
			for range 16 {
				page(x, i)[random.IntN(s.page)] ^= byte(1 + random.IntN(255))
			}
			return x
		}},
		{"second half zeroed", func(x []byte, i int) []byte { clear(page(x, i)[s.page/2:]); return x }},
		{"the page before", func(x []byte, i int) []byte { copy(page(x, i), page(x, (i+s.pages()-1)%s.pages())); return x }},
		{"cut before", func(x []byte, i int) []byte { return x[:i*s.page] }},
		{"cut inside", func(x []byte, i int) []byte { return x[:i*s.page+s.page/3] }},
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			refused := 0
			for i := range s.pages() {
				if k.name == "cut before" && i == 0 {
					continue // an empty file is the next test's
				}
				text := k.damage(bytes.Clone(s.text), i)
				dir := s.write(t, text)
				st, err := Open(dir, Options{Mode: api.Production, Now: s.h.now})
				if err != nil {
					refused++
					if !errors.Is(err, ErrDamaged) {
						t.Errorf("page %d: %v", i, err)
					}
					if now, rerr := os.ReadFile(filepath.Join(dir, fileName)); rerr != nil || !bytes.Equal(now, text) {
						t.Errorf("page %d: the file was changed, %v", i, rerr)
					}
					continue
				}
				s.complete(t, st)
				if err := errors.Join(st.Check(t.Context()), st.Close()); err != nil {
					t.Errorf("page %d: %v", i, err)
				}
			}
			t.Logf("%d of %d pages: refused", refused, s.pages())
			if refused < s.pages()/3 {
				t.Errorf("%d of %d were refused", refused, s.pages())
			}
		})
	}
}

// write makes a directory that holds text.
func (s *sample) write(t testing.TB, text []byte) string {
	t.Helper()
	dir := t.TempDir() + "/s"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, fileName), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// complete checks that everything acknowledged is in st.
func (s *sample) complete(t testing.TB, st *Store) {
	t.Helper()
	for _, id := range s.nonces {
		if err := st.ConsumeNonce(t.Context(), id, "ws", s.h.in(time.Hour)); !errors.Is(err, ErrReplay) {
			t.Fatalf("nonce %s: %v", id, err)
		}
	}
	for at, want := range s.records {
		bucket, key, _ := strings.Cut(at, "/")
		if got, err := st.Get(t.Context(), bucket, key); err != nil || string(got) != want {
			t.Fatalf("record %s: %d bytes, %v", at, len(got), err)
		}
	}
}

// A file that is gone, or empty, is not replaced by a new one.
func TestFileIsMissing(t *testing.T) {
	s := newSample(t)
	if _, err := Open(s.write(t, nil), Options{Mode: api.Production}); !errors.Is(err, ErrDamaged) {
		t.Errorf("an empty file: %v", err)
	}
	dir := s.write(t, s.text)
	open(t, dir, Options{Now: s.h.now}).Close()
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Mode: api.Production}); !errors.Is(err, ErrLost) {
		t.Errorf("a file that is gone: %v", err)
	}
	// A first start that was cut off leaves nothing in the way.
	dir = t.TempDir() + "/s"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, newName), s.text[:5000], 0o600)); err != nil {
		t.Fatal(err)
	}
	open(t, dir, Options{})
}

// The older of the meta pages comes back as it was two transactions before, whole and with its checksum: a
// write that the disk had acknowledged and lost. The file is not believed, since the page that bbolt would go
// back to at the next crash names pages that are in use for something else by now.
func TestMetaPageOfAnotherTime(t *testing.T) {
	dir := t.TempDir() + "/s"
	st := open(t, dir, Options{})
	path := filepath.Join(dir, fileName)
	read := func() []byte {
		t.Helper()
		if err := st.Put(t.Context(), "sandboxes", "one", []byte{1}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	texts := [][]byte{read(), read(), read(), read()}
	last := texts[len(texts)-1]
	if _, err := verify(bytes.NewReader(last), int64(len(last))); err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	transaction := func(text []byte, page int) uint64 { return native.Uint64(text[page*size+pageHead+48:]) }
	older := 0
	if transaction(last, 1) < transaction(last, 0) {
		older = 1
	}
	stale := bytes.Clone(last)
	copy(stale[older*size:(older+1)*size], texts[len(texts)-3][older*size:])
	if was, is := transaction(last, older), transaction(stale, older); is != was-2 {
		t.Fatalf("the older meta page is of transaction %d, the one put back of %d", was, is)
	}
	if _, err := verify(bytes.NewReader(stale), int64(len(stale))); !errors.Is(err, ErrDamaged) {
		t.Errorf("a meta page of another time: %v", err)
	}
}

// Files of another kind, owner or mode are refused and kept.
func TestUnsafeFile(t *testing.T) {
	s := newSample(t)
	for name, alter := range map[string]func(path string) error{
		"readable by the group": func(p string) error { return os.Chmod(p, 0o640) },
		"of another owner":      func(p string) error { return os.Chown(p, 65534, 65534) },
		"a second name":         func(p string) error { return os.Link(p, p+".2") },
		"a symlink":             func(p string) error { return errors.Join(os.Rename(p, p+".2"), os.Symlink(p+".2", p)) },
		"a directory":           func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"a pipe":                func(p string) error { return errors.Join(os.Remove(p), fifo(p)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := s.write(t, s.text)
			if err := alter(filepath.Join(dir, fileName)); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			st, err := Open(dir, Options{Mode: api.Production, Now: s.h.now})
			if err == nil {
				st.Close()
				t.Fatal("opened")
			}
			if took := time.Since(start); took > 5*DefaultTimeout {
				t.Errorf("it took %s", took)
			}
			t.Log(err)
		})
	}
}

// FuzzWalk damages a good file anywhere: no panic, no endless walk, and no other records.
func FuzzWalk(f *testing.F) {
	s := newSample(f)
	good := s.text[:s.pages()*s.page]
	want, err := contents(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), []byte{0}, uint32(len(good)))
	f.Add(uint32(s.page+16), []byte("meta"), uint32(len(good)))
	f.Add(uint32(2*s.page+8), []byte{0x10, 0, 0xff, 0xff}, uint32(len(good)))
	f.Add(uint32(3*s.page+16), []byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, uint32(3*s.page))
	f.Fuzz(func(t *testing.T, at uint32, patch []byte, size uint32) {
		text := bytes.Clone(good[:min(int(size), len(good))])
		if len(text) > 0 {
			copy(text[int(at)%len(text):], patch)
		}
		if _, err := verify(bytes.NewReader(text), int64(len(text))); err != nil {
			return
		}
		if got, err := contents(text); err != nil || !maps.Equal(got, want) {
			t.Errorf("accepted with %d records of %d, %v", len(got), len(want), err)
		}
	})
}
