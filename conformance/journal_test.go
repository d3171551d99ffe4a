// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"
)

// journals are those of n processes of one run.
func journals(t *testing.T, n int, planned []string) (dir string, all []*journal) {
	t.Helper()
	dir = t.TempDir()
	first, err := newJournal(dir, Setup{RunID: "r", Planned: planned})
	if err != nil {
		t.Fatal(err)
	}
	for all = []*journal{first}; len(all) < n; {
		next, err := openJournal(dir)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, next)
	}
	return dir, all
}

func recordOf(id string) Record {
	return Record{ID: id, Revision: 1, Status: Pass, Attempts: 1, Workloads: []Execution{{Workload: "w", Status: Pass, Witness: map[string]int64{"n": 1}}}}
}

func TestProcessesShareOneJournal(t *testing.T) {
	var planned []string
	for i := range 60 {
		planned = append(planned, fmt.Sprintf("AA-%02d", i))
	}
	dir, all := journals(t, 3, planned)
	var wg sync.WaitGroup
	for n, j := range all {
		wg.Go(func() {
			for i := n; i < len(planned)-1; i += len(all) {
				if err := j.add(recordOf(planned[i])); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if missing, err := all[1].missing(planned); err != nil || !reflect.DeepEqual(missing, planned[len(planned)-1:]) {
		t.Errorf("missing %v, %v", missing, err)
	}
	if err := all[2].add(recordOf(planned[0])); err == nil {
		t.Error("a case was recorded twice")
	}
	if err := all[0].add(recordOf(planned[len(planned)-1])); err != nil {
		t.Fatal(err)
	}
	if _, err := all[1].missing(planned[1:]); err == nil {
		t.Error("the record of a case that was not planned passed")
	}
	if err := all[0].seal(time.Now(), ""); err != nil {
		t.Fatal(err)
	}
	if err := all[1].seal(time.Now(), ""); err == nil {
		t.Error("there are two seals")
	}
	r, err := readRaw(dir)
	if err != nil || r.seal == nil || len(r.records) != len(planned) {
		t.Errorf("read back %d records, seal %v, %v", len(r.records), r.seal, err)
	}
}

func TestRecordOfADyingProcessDoesNotCount(t *testing.T) {
	for name, tt := range map[string]struct{ details, rows string }{
		"details only": {details: `{"id":"AA-02"}` + "\n"},
		"half details": {details: `{"id":"A`},
		"half a row":   {details: `{"id":"AA-02"}` + "\n", rows: `{"id":"A`},
	} {
		t.Run(name, func(t *testing.T) {
			planned := []string{"AA-01", "AA-02", "AA-03"}
			dir, all := journals(t, 2, planned)
			if err := all[0].add(recordOf("AA-01")); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{detailsFile: tt.details, rowsFile: tt.rows} {
				f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteString(text); err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			if r, err := readRaw(dir); err != nil || len(r.records) != 1 {
				t.Errorf("nobody has gone on: %d records, %v", len(r.records), err)
			}
			if err := all[1].add(recordOf("AA-03")); err != nil {
				t.Fatal(err)
			}
			r, err := readRaw(dir)
			if err != nil || len(r.records) != 2 || r.records[1].ID != "AA-03" {
				t.Errorf("the other has gone on: %+v, %v", r.records, err)
			}
			if missing, err := all[0].missing(planned); err != nil || !reflect.DeepEqual(missing, []string{"AA-02"}) {
				t.Errorf("missing %v, %v", missing, err)
			}
		})
	}
}

func TestChangedRecordStopsTheJournal(t *testing.T) {
	dir, all := journals(t, 2, []string{"AA-01", "AA-02"})
	r := recordOf("AA-01")
	r.Status, r.Reason = Fail, "judged"
	if err := all[0].add(r); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, rowsFile), `"revision":1`, `"revision": 1`)
	if err := all[1].add(recordOf("AA-02")); err == nil {
		t.Error("a record that is not canonical was taken in")
	}
}

func TestArmedIsWhatIsArmedEverywhere(t *testing.T) {
	oracle := func(name Oracle, armed bool, text string, n int64) OracleRecord {
		return OracleRecord{Oracle: name, Armed: armed, Text: text, Witness: map[string]int64{"n": n}}
	}
	tg := func(id string, claims ...string) TargetRecord {
		return TargetRecord{Driver: "toy", WorkerID: id, Claims: claims}
	}
	first := processSetup{Target: tg("a", "exec"), Oracles: []OracleRecord{oracle("both", true, "", 7), oracle("second", true, "", 1), oracle("first", false, "missed", 0), oracle("alone", true, "", 3)}}
	second := processSetup{Target: tg("b", "exec"), Oracles: []OracleRecord{oracle("both", true, "", 5), oracle("second", false, "missed", 0), oracle("first", true, "", 1)}}
	all, err := together([]processSetup{first, second})
	want := []OracleRecord{oracle("both", true, "", 5), oracle("second", false, "in process 2: missed", 0), oracle("first", false, "missed", 0), oracle("alone", true, "", 3)}
	if err != nil || !reflect.DeepEqual(all.Oracles, want) || all.Target.WorkerID != "a" {
		t.Errorf("%+v, %v", all, err)
	}
	second.Target.Claims = []string{"exec", "quota"}
	if _, err := together([]processSetup{first, second}); err == nil {
		t.Error("two targets with other claims are one")
	}
	second.Target, second.Oracles = tg("b", "exec"), []OracleRecord{oracle("other", true, "", 1)}
	if _, err := together([]processSetup{first, second}); err == nil {
		t.Error("an oracle that the first process has not tried is armed")
	}
}

func TestEventFitsThePipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := &child{peers: &peers{n: 2}, events: w}
	long := ""
	for range 3000 {
		long += "\u2028<"
	}
	c.tell(event{Kind: "end", ID: "AA-01", Text: long})
	w.Close()
	b := make([]byte, 8192)
	n, err := r.Read(b)
	if err != nil || n > maxEvent || n < maxEvent/4 || b[n-1] != '\n' {
		t.Errorf("%d bytes, %v", n, err)
	}
}
