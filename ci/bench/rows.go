// SPDX-License-Identifier: Apache-2.0

package main

// row is one line of the table: a figure of one benchmark, alone or beside the same figure of
// another one of the same run.
type row struct {
	title  string
	bench  string // name without the suffix of the processors
	unit   string // as the benchmark reports it
	beside string // benchmark to compare with; "" for none
	// atMost is what the difference, or the figure itself when there is nothing beside it, should not
	// exceed; 0 is no target.
	atMost float64
}

// run is what `go test` is asked for; rows of all runs go into one table.
type run struct {
	pkg, pattern string
	times        string // -benchtime
}

// runs and rows belong together: a benchmark that nobody runs, or whose figure nobody shows, is an
// error.
func runs() []run {
	return []run{
		{"./reference/worker", "^BenchmarkRequest$", "4000x"},
		{"./reference/worker", "^Benchmark64Clients$", "8000x"},
		{"./reference/worker", "^BenchmarkConnectionMemory$", "1x"},
		{"./reference/state", "^BenchmarkSync$", "500x"},
		{"./reference/state", "^BenchmarkOpen100000Nonces$", "5x"},
	}
}

func rows() []row {
	const request, clients = "BenchmarkRequest/", "Benchmark64Clients/"
	return []row{
		{"one caller, no checks: median", request + "plain", "p50-µs", "", 0},
		{"  with signature, nonce, strict decoding", request + "durable", "p50-µs", request + "plain", 1000},
		{"  the same, nonce in memory only", request + "memory", "p50-µs", request + "plain", 0},
		{"one caller, no checks: 99th percentile", request + "plain", "p99-µs", "", 0},
		{"  with signature, nonce, strict decoding", request + "durable", "p99-µs", request + "plain", 0},
		{"64 callers, no checks: throughput", clients + "plain", "requests/s", "", 0},
		{"  with all, nonce in memory only", clients + "memory", "requests/s", "", 0},
		{"  with all, nonce durable", clients + "durable", "requests/s", clients + "memory", 0},
		{"64 callers: median, nonce in memory only", clients + "memory", "p50-µs", "", 0},
		{"  nonce durable", clients + "durable", "p50-µs", clients + "memory", 0},
		{"64 callers: 99th percentile, in memory", clients + "memory", "p99-µs", "", 0},
		{"  nonce durable", clients + "durable", "p99-µs", clients + "memory", 0},
		{"64 callers: syncs of the disk per request", clients + "durable", "fsyncs/request", "", 0.5},
		{"one sync of 4 KiB on this disk: median", "BenchmarkSync", "p50-µs", "", 0},
		{"memory of an idle connection", "BenchmarkConnectionMemory/idle", "MiB/connection", "", 4},
		{"memory of one within a request", "BenchmarkConnectionMemory/active", "MiB/connection", "", 4},
		{"start with 100,000 nonces: the store", "BenchmarkOpen100000Nonces/open", "ns/op", "", 0},
		{"  bbolt's own check within it", "BenchmarkOpen100000Nonces/bbolt-check", "ns/op", "", 0},
	}
}
