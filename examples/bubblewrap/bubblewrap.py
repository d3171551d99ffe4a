#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A runtime for Hallmark's exec driver: bubblewrap, one bwrap for each command.

    python3 bubblewrap.py [BWRAP]        # started by the driver; needs root, bwrap 0.8, util-linux

What a sandbox is: a workspace (a tmpfs with a size and a number of inodes, mounted on the host
below $HALLMARK_EXEC_STATE), a cgroup with bounds of memory, tasks and CPU, and nothing else until
a command runs. Each command gets namespaces of its own, an empty root with the host's /usr
read-only, no network but loopback, no capability, uid 65532, and dies with its leader.

The protocol is documented in docs/exec-driver.md. Requests are handled side by side, answers go
out as they come. Read handle() first, then Sandboxes from top to bottom.
"""
import base64, contextlib, errno, json, os, secrets, select, shutil, signal, stat, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

TENANT = 65532
STATE = os.environ.get("HALLMARK_EXEC_STATE", "/run/bubblewrap-example")
MAX_FILE = 20 << 20  # of read: base64 makes it 27 MiB, and a line has at most 32 MiB

# What every command sees. The workspace and the command are added to it.
SHAPE = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(TENANT), "--gid", str(TENANT), "--hostname", "sandbox",
         "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
         "--setenv", "PATH", "/usr/bin:/usr/sbin", "--setenv", "HOME", "/workspace", "--setenv", "LANG", "C.UTF-8",
         "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin", "--symlink", "usr/lib", "/lib",
         "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
         "--size", "16777216", "--tmpfs", "/tmp", "--size", "16777216", "--tmpfs", "/dev/shm"]

# Joins the cgroups that are named before "--", then becomes what stands behind it.
ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


class Refusal(Exception):
    """A typed answer: code is ours, kind is one of the protocol's, text is for people."""
    def __init__(self, code, kind, text=""):
        super().__init__(text)
        self.error = {"code": code, "kind": kind, "text": text}


# ---- files: as root on the host, so by descriptors and never through a link of the tenant's ----

@contextlib.contextmanager
def parent_of(root, path):
    """Yields a descriptor of the folder that holds path's last component, and that component."""
    parts = path.split(b"/")
    if b"\0" in path or any(p in (b"", b".", b"..") for p in parts):
        raise Refusal("BWRAP_PATH", "path-unsafe", "a path is relative, without empty, . and .. components")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd, parts[-1]
    except OSError as e:
        known = {errno.ENOENT: ("BWRAP_NOT_FOUND", "not-found"), errno.ENOSPC: ("BWRAP_NO_SPACE", "no-space"), errno.EDQUOT: ("BWRAP_NO_SPACE", "no-space")}
        raise Refusal(*known.get(e.errno, ("BWRAP_PATH", "path-unsafe")), os.strerror(e.errno))
    finally:
        os.close(fd)


def read_file(root, path):
    with parent_of(root, path) as (folder, name):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with os.fdopen(fd, "rb") as f:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Refusal("BWRAP_NOT_A_FILE", "path-unsafe", "not a regular file")
            body = f.read(MAX_FILE + 1)
    if len(body) > MAX_FILE:
        raise Refusal("BWRAP_TOO_LARGE", "unsupported", f"larger than {MAX_FILE} bytes")
    return body


def write_file(root, path, body):
    """Makes a new file and puts it in place: whatever was there, a link too, is replaced whole."""
    with parent_of(root, path) as (folder, name):
        new = b".new-" + secrets.token_hex(8).encode()
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(body)
                f.flush()
                os.fchown(fd, TENANT, TENANT)
                os.fchmod(fd, 0o755)
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(new, dir_fd=folder)
            raise


def stat_file(root, path):
    with parent_of(root, path) as (folder, name):
        st = os.stat(name, dir_fd=folder, follow_symlinks=False)
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
    return {"name": enc(path.split(b"/")[-1]), "kind": kind.get(stat.S_IFMT(st.st_mode), "device"), "size": st.st_size}


def remove_file(root, path):
    with parent_of(root, path) as (folder, name):
        is_dir = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        (os.rmdir if is_dir else os.unlink)(name, dir_fd=folder)


# ---- cgroups: one for each sandbox, on v1 (a tree for each controller) and on v2 (one tree) ----

class Cgroups:
    def __init__(self):
        self.parent = f"/hallmark-bwrap-{secrets.token_hex(4)}"
        self.v2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        names = [""] if self.v2 else ["memory", "pids", "cpu"]
        self.tops = {c: os.path.join("/sys/fs/cgroup", c, self.parent[1:]) for c in names}

    def start(self):
        for top in self.tops.values():
            os.mkdir(top)
        if self.v2:
            put(self.tops[""], "cgroup.subtree_control", "+memory +pids +cpu")

    def create(self, name, memory, pids, cpu_millis):
        dirs = {c: os.path.join(top, name) for c, top in self.tops.items()}
        for d in dirs.values():
            os.mkdir(d)
        if self.v2:
            put(dirs[""], "memory.max", memory)
            put(dirs[""], "memory.swap.max", 0)
            put(dirs[""], "pids.max", pids)
            put(dirs[""], "cpu.max", f"{cpu_millis * 100} 100000")
        else:
            put(dirs["memory"], "memory.limit_in_bytes", memory)
            with contextlib.suppress(FileNotFoundError):  # no swap accounting
                put(dirs["memory"], "memory.memsw.limit_in_bytes", memory)
            put(dirs["pids"], "pids.max", pids)
            put(dirs["cpu"], "cpu.cfs_quota_us", cpu_millis * 100)
        return dirs

    @staticmethod
    def remove(dirs):
        busy = []
        for d in dirs.values():
            for _ in range(100):  # the kernel lets go of a dead task a moment later
                try:
                    os.rmdir(d)
                    break
                except FileNotFoundError:
                    break
                except OSError:  # bwrap was killed before its child would die with it: end that too
                    kill_all(d)
                    time.sleep(0.02)
            else:
                busy.append(d)
        if busy:
            raise Refusal("BWRAP_CGROUP_BUSY", "", f"still in use: {busy}")

    def remove_tree(self, top):
        """Also what a create that failed half-way has made."""
        below = [e.path for e in os.scandir(top) if e.is_dir()]
        self.remove(dict(enumerate([*below, top])))


def members(d):
    with open(os.path.join(d, "cgroup.procs")) as procs:
        return {int(pid) for pid in procs}


def kill_all(d):
    """Kills what is in a cgroup now. By descriptor: a number may be somebody else's a moment later."""
    with contextlib.suppress(OSError):
        if os.path.exists(os.path.join(d, "cgroup.kill")):  # v2
            return put(d, "cgroup.kill", 1)
        for pid in members(d):
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in members(d):  # so the descriptor is of one in here
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)


def put(folder, name, value):
    with open(os.path.join(folder, name), "w") as f:
        f.write(str(value))


# ---- commands ----

class Output:
    """Both streams of one command: the first limit bytes are kept, the rest is counted."""
    def __init__(self, limit):
        self.left, self.lock = limit, threading.Lock()
        self.kept, self.dropped = (bytearray(), bytearray()), [0, 0]

    def drain(self, stream, which):
        while block := os.read(stream.fileno(), 65536):
            with self.lock:
                keep = block[:self.left]
                self.left -= len(keep)
                self.kept[which].extend(keep)
                self.dropped[which] += len(block) - len(keep)


class Sandbox:
    def __init__(self, ident, workspace, root, cgroups):
        self.id, self.workspace, self.root, self.cgroups = ident, workspace, root, cgroups
        self.lock, self.commands, self.inits, self.gone = threading.Lock(), set(), set(), False


class Sandboxes:
    def __init__(self):
        self.bwrap = os.path.join(STATE, "bwrap")  # a copy: the tenant's user may not reach the original
        self.record = os.path.join(STATE, "cgroup")  # for whoever finds what a SIGKILL has left
        self.groups, self.lock, self.live, self.workspaces, self.closing = Cgroups(), threading.Lock(), {}, {}, False

    def start(self, bwrap):
        """Makes what close() removes: whoever calls it has promised to call that."""
        os.makedirs(STATE, mode=0o711, exist_ok=True)
        shutil.copy(bwrap, self.bwrap)
        os.chmod(self.bwrap, 0o755)
        self.version = subprocess.run([self.bwrap, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
        with open(self.record, "w") as f:
            f.write(self.groups.parent + "\n")
        self.groups.start()

    def describe(self, r):
        if r["protocol"] != "hallmark-exec/1":
            raise Refusal("BWRAP_PROTOCOL", "unsupported", "this program speaks hallmark-exec/1")
        return {"protocol": "hallmark-exec/1", "name": "bubblewrap", "version": self.version,
                "claims": ["exec", "files", "no-network", "quota"],
                "parts": ["observer.workspace-path", "observer.cgroup", "observer.worker-process", "controller.foothold"],
                "root": "bwrap " + " ".join(SHAPE), "workerPid": os.getpid(), "cgroupParent": self.groups.parent}

    def create(self, r):
        ident = secrets.token_hex(8)
        with self.lock:
            if self.closing:
                raise Refusal("BWRAP_CLOSING", "gone", "the program is ending")
            root = self.workspaces.get(r["workspace"])
            if root is None:  # named by a number of ours: the id is somebody else's text
                root = os.path.join(STATE, f"ws-{ident}")
                os.mkdir(root, 0o700)
                # One inode more than asked for: the workspace's own folder.
                options = f"size={r['workspaceBytes']},nr_inodes={r['workspaceInodes'] + 1},mode=700,uid={TENANT},gid={TENANT},nosuid,nodev"
                try:
                    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "workspace", root], check=True)
                except Exception:
                    os.rmdir(root)
                    raise
                self.workspaces[r["workspace"]] = root
            dirs = self.groups.create(ident, r["memoryBytes"], r["pids"], r["cpuMillis"])
            self.live[ident] = Sandbox(ident, r["workspace"], root, dirs)
        return {"sandbox": ident}

    def box(self, r):
        with self.lock:
            if r["sandbox"] not in self.live:
                raise Refusal("BWRAP_GONE", "gone", "no such sandbox")
            return self.live[r["sandbox"]]

    def exec(self, r):
        box = self.box(r)
        argv = ["setpriv", "--reuid", str(TENANT), "--regid", str(TENANT), "--clear-groups", "--pdeathsig", "KILL", "--", self.bwrap, *SHAPE,
                "--bind", box.root, "/workspace", "--chdir", os.path.join(b"/workspace", dec(r["cwd"])), "--remount-ro", "/",
                "--json-status-fd", "STATUS", "--", *map(dec, r["argv"])]
        return self.run(box, argv, dec(r["stdin"]), r["timeoutMs"] / 1000, r["maxOutputBytes"], request=r["id"])

    def run(self, box, argv, stdin, timeout, limit, request=None, own_status=True):
        """Starts argv in the sandbox's cgroup and answers when its leader and all others are gone."""
        status_r, status_w = os.pipe()
        argv = ["sh", "-c", ENTER, "sh", *box.cgroups.values(), "--", *(str(status_w) if a == "STATUS" else a for a in argv)]
        start, late, out, status, init = time.monotonic(), threading.Event(), Output(limit), {}, -1
        with box.lock:
            if box.gone:
                raise Refusal("BWRAP_GONE", "gone", "the sandbox is being disposed")
            p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[status_w] if own_status else [])
            p.request = request
            box.commands.add(p)
        os.close(status_w)
        timer = threading.Timer(timeout, lambda: (late.set(), p.kill()))
        threads = [threading.Thread(target=out.drain, args=(s, i)) for i, s in enumerate((p.stdout, p.stderr))]
        threads.append(threading.Thread(target=feed, args=(p.stdin, stdin)))
        for t in [timer, *threads]:
            t.start()
        try:
            with os.fdopen(status_r) as lines:  # bwrap tells the pid of the namespace's init, later the exit code
                for line in lines:
                    status.update(json.loads(line))
                    if init < 0 and "child-pid" in status:
                        with contextlib.suppress(ProcessLookupError):
                            init = os.pidfd_open(status["child-pid"])
                            box.inits.add(status["child-pid"])
            code = p.wait()
            # Init dies with bwrap and the kernel ends everything in its namespace before init is gone.
            proven = init < 0 or bool(select.select([init], [], [], 5)[0])
        finally:
            timer.cancel()
            box.inits.discard(status.get("child-pid"))
            box.commands.discard(p)
            if init >= 0:
                os.close(init)
        for t in threads:
            t.join(5)
        if own_status and "exit-code" not in status and code >= 0 and not late.is_set():
            raise Refusal("BWRAP_SPAWN", "", out.kept[1].decode(errors="replace")[:500])
        return {"stdout": enc(out.kept[0]), "stderr": enc(out.kept[1]), "exitCode": -1 if code < 0 else code, "signal": "SIGKILL" if code < 0 else "",
                "timedOut": late.is_set(), "durationMs": int((time.monotonic() - start) * 1000), "cleanupProven": proven,
                "truncatedStdout": out.dropped[0] > 0, "truncatedStderr": out.dropped[1] > 0, "droppedBytes": sum(out.dropped)}

    @staticmethod
    def settled(box):
        """The pid of an init that has its own root already, or None: until then it is the host's."""
        there = os.stat(box.root)
        for _ in range(500):
            for pid in list(box.inits):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{pid}/root/workspace"), there):
                        return pid
            time.sleep(0.01)
        return None

    def foothold(self, r):
        """Root in the namespaces of a running command; where none runs, one is started for it."""
        box = self.box(r)
        if not box.inits:
            keeper = {"id": None, "sandbox": box.id, "argv": [enc(b"/usr/bin/sleep"), enc(b"60")], "cwd": "", "stdin": "", "timeoutMs": 60000, "maxOutputBytes": 1000}
            threading.Thread(target=self.exec, args=(keeper,), daemon=True).start()
        pid = self.settled(box)
        if pid is None:
            raise Refusal("BWRAP_NO_COMMAND", "busy", "no command came to stand within 5 s")
        argv = ["nsenter", "--target", str(pid), "--user", "--preserve-credentials", "--mount", "--ipc", "--uts", "--net", "--pid", "--wdns=/", "--", *map(dec, r["argv"])]
        return self.run(box, argv, dec(r["stdin"]), 120, 4 << 20, request=r["id"], own_status=False)

    def cancel(self, request):
        with self.lock:
            boxes = list(self.live.values())
        for box in boxes:
            for p in list(box.commands):
                if p.request == request:
                    p.kill()

    def dispose(self, r):
        with self.lock:
            box = self.live.pop(r["sandbox"], None)
        if box is None:
            return {}
        with box.lock:
            box.gone = True
            for p in list(box.commands):
                p.kill()
        self.groups.remove(box.cgroups)  # works only when no process is left in there
        return {}

    def purge(self, r):
        with self.lock:
            if any(b.workspace == r["workspace"] for b in self.live.values()):
                raise Refusal("BWRAP_IN_USE", "busy", "a sandbox uses the workspace")
            root = self.workspaces.get(r["workspace"])
            if root is not None:
                if os.path.ismount(root):
                    subprocess.run(["umount", root], check=True)
                os.rmdir(root)
                del self.workspaces[r["workspace"]]  # last: what failed is tried again
        return {}

    def read(self, r): return {"body": enc(read_file(self.box(r).root, dec(r["path"])))}
    def write(self, r): write_file(self.box(r).root, dec(r["path"]), dec(r["body"])); return {}
    def stat(self, r): return stat_file(self.box(r).root, dec(r["path"]))
    def remove(self, r): remove_file(self.box(r).root, dec(r["path"])); return {}
    def state(self, r): self.box(r); return {"state": "ready"}
    def observe(self, r): box = self.box(r); return {"workspace": box.root, "cgroups": box.cgroups}

    def close(self, r=None):
        """Removes everything there is: what cannot be removed is told, and keeps nothing else here."""
        with self.lock:  # whoever creates has finished, and nobody begins
            self.closing = True
        steps = [(self.dispose, {"sandbox": ident}) for ident in list(self.live)]
        steps += [(self.purge, {"workspace": workspace}) for workspace in list(self.workspaces)]
        steps += [(self.groups.remove_tree, top) for top in self.groups.tops.values()] + [(os.unlink, self.bwrap)]
        errors = []
        for step, what in steps:
            try:
                step(what)
            except FileNotFoundError:
                pass  # it was not made yet, or is gone
            except Exception as e:
                errors.append(f"{what}: {e!r}")
        if errors:  # the record stays, and says where the rest is
            raise Refusal("BWRAP_LEFT", "", "; ".join(errors))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.record)
        return {}


def feed(pipe, body):
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(body)


def dec(text): return base64.b64decode(text, validate=True)
def enc(body): return base64.b64encode(bytes(body)).decode()


# ---- the protocol: one JSON object a line ----

OPERATIONS = {"describe", "create", "exec", "read", "write", "stat", "remove", "state", "dispose", "purge", "observe", "foothold", "close"}


def handle(boxes, request, answering):
    try:
        if request["op"] not in OPERATIONS:
            raise Refusal("BWRAP_UNSUPPORTED", "unsupported", f"no operation {request['op']}")
        answer = {"id": request["id"], "ok": getattr(boxes, request["op"])(request)}
    except Refusal as e:
        answer = {"id": request["id"], "error": e.error}
    except Exception as e:  # a fault of this program: told, and in the log
        print(f"{request['op']}: {e!r}", file=sys.stderr)
        answer = {"id": request["id"], "error": {"code": "BWRAP_INTERNAL", "text": repr(e)}}
    with answering:
        print(json.dumps(answer), flush=True)


def main():
    bwrap = sys.argv[1] if len(sys.argv) > 1 else shutil.which("bwrap")
    if os.geteuid() != 0 or not bwrap:
        sys.exit("bubblewrap.py needs root (cgroups, mounts) and bwrap: python3 bubblewrap.py /path/to/bwrap")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the suite has died: clean up on the way out
    boxes, answering, closed = Sandboxes(), threading.Lock(), False
    pool = ThreadPoolExecutor(64)
    try:
        boxes.start(bwrap)
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if "cancel" in request:
                boxes.cancel(request["cancel"])
            elif request["op"] == "close":
                handle(boxes, request, answering)
                closed = True
            else:
                pool.submit(handle, boxes, request, answering)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end this half-way
        pool.shutdown(wait=False, cancel_futures=True)
        if not closed:
            boxes.close()


if __name__ == "__main__":
    main()
