// SPDX-License-Identifier: Apache-2.0

package supervisor

import "time"

// Paths inside the sandbox.
const (
	Dir       = "/run/hallmark"
	Socket    = Dir + "/control.sock"
	Workspace = "/workspace"
	// Binary is where the worker mounts this program.
	Binary = "/.hallmark/supervisor"
	self   = "/proc/self/exe"
)

// Tenant is the uid and gid of every tenant process.
const Tenant = 65532

// Bounds in time.
const (
	// Grace lies between SIGTERM and SIGKILL at a time-out or cancel.
	Grace = 200 * time.Millisecond
	// KillWithin bounds the sweeps; after it the cleanup counts as not proven.
	KillWithin = 5 * time.Second
	// straysMargin is what PID 1 may need beyond that for the processes that have left the keeper's tree. The worker
	// hears the outcome before control.TerminateWithin, still.
	straysMargin = 1500 * time.Millisecond
	// strayless is how long strays may keep coming while somebody waits for their end, before everything of the
	// tenant's is stopped for at most standStillWithin to end them.
	strayless        = 300 * time.Millisecond
	standStillWithin = 2 * time.Second
	// readyWithin bounds the start of a keeper.
	readyWithin = 5 * time.Second
	// lookWithin bounds one look at all processes, which under a bomb waits for them with each call.
	lookWithin = 500 * time.Millisecond
	// standWithin bounds how long a process group is stopped until all of it stands.
	standWithin = 1500 * time.Millisecond
	// keeperMargin is what a keeper may need beyond time-out or cancel, grace and sweeps before PID 1
	// gives it up: its tree is killed then, and the worker hears that well within control.TerminateWithin.
	keeperMargin = 1500 * time.Millisecond
	// giveUpWithin bounds one look at the tree of a keeper that was given up.
	giveUpWithin = time.Second
)

// Bounds in number.
const (
	maxConns       = 16
	maxInvocations = 8
	idleKeepers    = 2
	// Threads: connections and keepers use the poller, syscalls are short. Looks at /proc are not, of which a sweep and the
	// end of a keeper's tree may be under way at one time; and one thread is the looker's.
	warmSupervisor = 12
	warmKeeper     = 8
	warmBridge     = 4
)

// Environment is exactly what a tenant process gets; with a secret, HOME is another.
func Environment() []string { return environment(Workspace) }

func environment(home string) []string {
	return []string{
		"HOME=" + home,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"TMPDIR=/tmp",
	}
}

// searchPath is PATH of [Environment].
func searchPath() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}
