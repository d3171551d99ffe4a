// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// journal writes one run's records, each synced before its process runs the next case. The
// processes of a run share the files: whoever writes holds the lock on the records and has taken
// in what the others wrote, so that the chain is the same as if one had written all.
type journal struct {
	dir string

	mu            sync.Mutex
	rows, details *os.File
	chain         *evidence.Chain
	rowsEnd       int64 // bytes of the records that the chain holds
	detailsEnd    int64 // and of their details
	seen          map[string]bool
}

// newJournal puts the setup and its arming record on disk, synced, and starts the records.
func newJournal(dir string, s Setup) (*journal, error) {
	arming := s.arming()
	for name, v := range map[string]any{armingFile: arming, setupFile: s} {
		b, err := strictjson.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		if err := writeSynced(filepath.Join(dir, name), b); err != nil {
			return nil, err
		}
	}
	return startJournal(dir, arming, os.O_CREATE|os.O_EXCL)
}

// openJournal joins the records that another process of the run has started.
func openJournal(dir string) (*journal, error) {
	var arming evidence.Arming
	if ok, err := readFile(dir, armingFile, &arming); err != nil {
		return nil, err
	} else if !ok {
		return nil, fmt.Errorf("%s is missing", armingFile)
	}
	return startJournal(dir, arming, 0)
}

func startJournal(dir string, arming evidence.Arming, how int) (*journal, error) {
	chain, err := evidence.NewChain(arming)
	if err != nil {
		return nil, fmt.Errorf("start record chain: %w", err)
	}
	j := &journal{dir: dir, chain: chain, seen: map[string]bool{}}
	if j.rows, err = os.OpenFile(filepath.Join(dir, rowsFile), os.O_RDWR|how, 0o644); err != nil {
		return nil, fmt.Errorf("open case records: %w", err)
	}
	if j.details, err = os.OpenFile(filepath.Join(dir, detailsFile), os.O_RDWR|how, 0o644); err != nil {
		return nil, fmt.Errorf("open case details: %w", err)
	}
	return j, nil
}

// add appends the record of a case that has none. The details come first: a row without them
// cannot be read back.
func (j *journal) add(r Record) error {
	detail, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode details of %s: %w", r.ID, err)
	}
	// The row is made of the details as they will be read back, so that both always agree.
	var again Record
	if err := json.Unmarshal(detail, &again); err != nil {
		return fmt.Errorf("decode details of %s: %w", r.ID, err)
	}
	detail = append(detail, '\n')
	return j.locked(func() error {
		if j.seen[r.ID] {
			return fmt.Errorf("%s has a record already", r.ID)
		}
		line, err := j.chain.Add(again.row())
		if err != nil {
			return fmt.Errorf("encode record of %s: %w", r.ID, err)
		}
		for _, w := range []struct {
			file *os.File
			end  *int64
			text []byte
		}{{j.details, &j.detailsEnd, detail}, {j.rows, &j.rowsEnd, line}} {
			if _, err := w.file.WriteAt(w.text, *w.end); err != nil {
				return fmt.Errorf("write record of %s: %w", r.ID, err)
			}
			if err := w.file.Sync(); err != nil {
				return fmt.Errorf("sync record of %s: %w", r.ID, err)
			}
			*w.end += int64(len(w.text))
		}
		j.seen[r.ID] = true
		return nil
	})
}

// missing returns the planned cases that have no record, and an error when a case has one that
// was not planned.
func (j *journal) missing(planned []string) (ids []string, err error) {
	err = j.locked(func() error {
		for _, id := range planned {
			if !j.seen[id] {
				ids = append(ids, id)
			}
		}
		if len(planned)-len(ids) != len(j.seen) {
			return fmt.Errorf("%d cases have records, of which %d were planned", len(j.seen), len(planned)-len(ids))
		}
		return nil
	})
	return ids, err
}

func (j *journal) seal(at time.Time, teardown string) error {
	return j.locked(func() error {
		b, err := strictjson.Marshal(sealRecord{Seal: j.chain.Seal(at), Teardown: teardown})
		if err != nil {
			return fmt.Errorf("encode seal: %w", err)
		}
		return writeSynced(filepath.Join(j.dir, sealFile), b)
	})
}

// locked calls f with the records to itself and up to date.
func (j *journal) locked(f func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	fd := int(j.rows.Fd())
	if err := ignoringEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX) }); err != nil {
		return fmt.Errorf("lock case records: %w", err)
	}
	defer unix.Flock(fd, unix.LOCK_UN)
	if err := j.catchUp(); err != nil {
		return fmt.Errorf("read case records: %w", err)
	}
	return f()
}

// catchUp takes in what other processes have added. What is left of one that died in the middle of
// a record, a line without its end or details without their row, never counted and is cut off.
func (j *journal) catchUp() error {
	rows, err := linesFrom(j.rows, j.rowsEnd)
	if err != nil {
		return err
	}
	details, err := linesFrom(j.details, j.detailsEnd)
	if err != nil {
		return err
	}
	if len(details) < len(rows) {
		return fmt.Errorf("%d records have %d details", len(rows), len(details))
	}
	for i, line := range rows {
		var row evidence.CaseRow
		if err := strictjson.Unmarshal(bytes.TrimSuffix(line, []byte("\n")), &row, strictjson.Default); err != nil {
			return err
		}
		again, err := j.chain.Add(row)
		if err != nil {
			return err
		}
		if !bytes.Equal(again, line) || j.seen[row.ID] {
			return fmt.Errorf("the record of %s is not canonical, or there twice", row.ID)
		}
		j.seen[row.ID] = true
		j.rowsEnd += int64(len(line))
		j.detailsEnd += int64(len(details[i]))
	}
	if err := j.rows.Truncate(j.rowsEnd); err != nil {
		return err
	}
	return j.details.Truncate(j.detailsEnd)
}

// linesFrom returns the complete lines from offset on, with their newlines.
func linesFrom(f *os.File, offset int64) ([][]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<40))
	if err != nil {
		return nil, err
	}
	return completeLines(b), nil
}
