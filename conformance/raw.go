// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// rawRun is what a child left, read back and checked against itself.
type rawRun struct {
	setup   *Setup // nil when the child did not get as far
	arming  evidence.Arming
	records []Record
	rows    []evidence.CaseRow // of records, in order of finishing
	seal    *sealRecord        // nil when the run did not end as planned
}

// readRaw reads the raw folder. What is not there is not an error; what disagrees is: a row
// that does not follow from its details, or a seal over other rows.
func readRaw(dir string) (rawRun, error) {
	var r rawRun
	setup := new(Setup)
	if ok, err := readFile(dir, setupFile, setup); err != nil || !ok {
		return r, err
	}
	if ok, err := readFile(dir, armingFile, &r.arming); err != nil || !ok {
		return rawRun{}, err
	}
	r.setup = setup
	chain, err := evidence.NewChain(r.arming)
	if err != nil {
		return r, fmt.Errorf("check record chain: %w", err)
	}
	rows, err := readLines(dir, rowsFile)
	if err != nil {
		return r, err
	}
	details, err := readLines(dir, detailsFile)
	if err != nil {
		return r, err
	}
	for i, line := range rows {
		if i >= len(details) {
			return r, fmt.Errorf("case record %d has no details", i+1)
		}
		var rec Record
		if err := json.Unmarshal(details[i], &rec); err != nil {
			return r, fmt.Errorf("decode details of case record %d: %w", i+1, err)
		}
		row := rec.row()
		again, err := chain.Add(row)
		if err != nil {
			return r, fmt.Errorf("check case record %d: %w", i+1, err)
		}
		if !bytes.Equal(again, line) {
			return r, fmt.Errorf("case record %d (%s) does not follow from its details", i+1, rec.ID)
		}
		r.records, r.rows = append(r.records, rec), append(r.rows, row)
	}
	seal := new(sealRecord)
	if ok, err := readFile(dir, sealFile, seal); err != nil || !ok {
		return r, err
	}
	at, _ := seal.Seal.FinishedAt.Time()
	if chain.Seal(at) != seal.Seal {
		return r, fmt.Errorf("the seal does not match the %d case records", len(r.records))
	}
	r.seal = seal
	return r, nil
}

func readFile(dir, name string, v any) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	if err := strictjson.Unmarshal(b, v, strictjson.Default); err != nil {
		return false, fmt.Errorf("decode %s: %w", name, err)
	}
	return true, nil
}

// readLines returns the complete lines with their newlines. A last line without one is of a
// child that died while it wrote; it never counted.
func readLines(dir, name string) ([][]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return completeLines(b), nil
}

func completeLines(b []byte) (out [][]byte) {
	for line := range bytes.Lines(b) {
		if bytes.HasSuffix(line, []byte("\n")) {
			out = append(out, line)
		}
	}
	return out
}
