// SPDX-License-Identifier: Apache-2.0

package main

// row is one line of the table: a figure of one benchmark, alone or beside the same figure of
// another one of the same run.
type row struct {
	title  string
	bench  string // name without the suffix of the processors
	unit   string // as the benchmark reports it
	beside string // benchmark to compare with, and after a space its unit if that is another; "" for none
	target target
}

// target is what a row's figure should not exceed. The zero value is none.
type target struct {
	// difference to what is beside it, or the figure itself when nothing is; in the row's unit.
	difference float64
	// ratio to what is beside it.
	ratio float64
}

var none target

func atMost(v float64) target      { return target{difference: v} }
func atMostRatio(v float64) target { return target{ratio: v} }

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
		{"./reference/quota/project", "^BenchmarkApply100000$", "7x"},
		{"./reference/quota/project", "^BenchmarkMillion$", "1x"},
		{"./conformance/target/api", "^BenchmarkExec$", "30x"},
		{"./conformance/target/api", "^BenchmarkKillToQuiet$", "10x"},
		{"./conformance/target/api", "^BenchmarkIdleSandbox$", "1x"},
		{"./conformance/target/api", "^BenchmarkFlood$", "2x"},
	}
}

func rows() []row {
	const request, clients = "BenchmarkRequest/", "Benchmark64Clients/"
	const exec, kill, idle = "BenchmarkExec", "BenchmarkKillToQuiet", "BenchmarkIdleSandbox"
	return []row{
		{"one caller, no checks: median", request + "plain", "p50-µs", "", none},
		{"  with signature, nonce, strict decoding", request + "durable", "p50-µs", request + "plain", atMost(1000)},
		{"  the same, nonce in memory only", request + "memory", "p50-µs", request + "plain", none},
		{"one caller, no checks: 99th percentile", request + "plain", "p99-µs", "", none},
		{"  with signature, nonce, strict decoding", request + "durable", "p99-µs", request + "plain", none},
		{"64 callers, no checks: throughput", clients + "plain", "requests/s", "", none},
		{"  with all, nonce in memory only", clients + "memory", "requests/s", "", none},
		{"  with all, nonce durable", clients + "durable", "requests/s", clients + "memory", none},
		{"64 callers: median, nonce in memory only", clients + "memory", "p50-µs", "", none},
		{"  nonce durable", clients + "durable", "p50-µs", clients + "memory", none},
		{"64 callers: 99th percentile, in memory", clients + "memory", "p99-µs", "", none},
		{"  nonce durable", clients + "durable", "p99-µs", clients + "memory", none},
		{"64 callers: syncs of the disk per request", clients + "durable", "fsyncs/request", "", atMost(0.5)},
		{"one sync of 4 KiB on this disk: median", "BenchmarkSync", "p50-µs", "", none},
		{"memory of an idle connection", "BenchmarkConnectionMemory/idle", "MiB/connection", "", atMost(4)},
		{"memory of one within a request", "BenchmarkConnectionMemory/active", "MiB/connection", "", atMost(4)},
		{"start with 100,000 nonces: the store", "BenchmarkOpen100000Nonces/open", "ns/op", "", none},
		{"  bbolt's own check within it", "BenchmarkOpen100000Nonces/bbolt-check", "ns/op", "", none},
		{"project id for 100,000 files, verified, beside xfs_quota: median", "BenchmarkApply100000", "p50-µs", "BenchmarkApply100000 xfs_quota-p50-µs", atMostRatio(1)},
		{"project id for 1,000,000 files: median", "BenchmarkMillion", "p50-µs", "", none},
		{"  peak of the whole process", "BenchmarkMillion", "peak-MiB", "", atMost(160)},
		{"spawn of true by a program in the sandbox: median", exec, "floor-p50-µs", "", none},
		{"  exec of true through the API", exec, "api-p50-µs", exec + " floor-p50-µs", atMost(10_000)},
		{"    of it inside, by the supervisor's word", exec, "inside-p50-µs", exec + " floor-p50-µs", none},
		{"    one sync of 4 KiB, of which it needs several", exec, "sync-p50-µs", "", none},
		{"    without a pause between execs", exec, "unpaused-p50-µs", exec + " floor-p50-µs", none},
		{"  the same, beside an engine exec", exec, "api-p50-µs", exec + " engine-p50-µs", atMostRatio(0.25)},
		{"spawn of true by a program in the sandbox: 99th percentile", exec, "floor-p99-µs", "", none},
		{"  exec of true through the API", exec, "api-p99-µs", exec + " floor-p99-µs", none},
		{"  the same, beside an engine exec", exec, "api-p99-µs", exec + " engine-p99-µs", none},
		{"from a cancel to the last beat of a stubborn tree: median", kill, "cancel-p50-µs", "", atMost(500_000)},
		{"  slowest", kill, "cancel-max-µs", "", none},
		{"from a time-out to the same: median", kill, "timeout-p50-µs", "", atMost(500_000)},
		{"  slowest", kill, "timeout-max-µs", "", none},
		{"supervisor: size of the program", idle, "binary-MiB", "", atMost(6)},
		{"  PID 1 of an idle sandbox, resident", idle, "pid1-MiB", "", none},
		{"  each keeper", idle, "keeper-MiB", "", none},
		{"  each waiting launch stage", idle, "launch-MiB", "", none},
		{"  bridge", idle, "bridge-MiB", "", none},
		{"idle sandbox: memory of its cgroup", idle, "cgroup-MiB", "", none},
		{"  peak since its start", idle, "cgroup-peak-MiB", "", none},
		{"  host tasks", idle, "tasks", "", none},
		{"a command that writes 1 GiB: its output budget", "BenchmarkFlood", "budget-MiB", "", none},
		{"  peak of the worker over what it had before", "BenchmarkFlood", "worker-MiB", "", atMost(8)},
		{"  the supervisor's processes over what they had before", "BenchmarkFlood", "supervisor-MiB", "", atMost(8)},
		{"  peak of the sandbox's cgroup, sentry and command too", "BenchmarkFlood", "sandbox-MiB", "", none},
	}
}
