# ruff: noqa: E501 - programs as text
"""Programs for the tests of sandboxes: attacks with the guarantees that they need, and honest programs.

An attack prints ``BREACH`` where it reached something and ``held`` where it was refused. ``$FILE``, ``$PORT``,
``$ABSTRACT``, ``$SOCKET``, ``$DATAGRAM`` and ``$PID`` stand for a file, a server, an abstract socket, two sockets at a
path and the process of the host.
"""

from __future__ import annotations

from dataclasses import dataclass

PRELUDE = r'''
import ctypes, errno, mmap, os, resource, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    """A system call by number; its errors as OSError."""
    value = libc.syscall(*map(ctypes.c_long, arguments))
    if value == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value
def tries(*attempts):
    for attempt in attempts:
        try:
            value = attempt()
        except OSError as e:
            print("held", e.errno, flush=True)
        else:
            print("BREACH", repr(value)[:200], flush=True)
def write(path, data=b"x"):
    with open(path, "wb", buffering=0) as f:
        f.write(data)
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        s.connect(address)
        return s.send(b"x")
def check(breach, what=""):
    print("BREACH" if breach else "held", what, flush=True)
'''


@dataclass(frozen=True)
class Attack:
    """A hostile program, the classes of `docs/security.md` that it belongs to, and its safe outcomes."""

    name: str
    needs: str
    """Axes that must be enforced for the outcome to be safe."""
    code: str
    statuses: str = "ok"
    """Statuses that are safe."""
    exact: bool = True
    """Whether the program lives long enough to report ``held``."""


ATTACKS = (
    Attack("read host files", "filesystem", """
tries(*(lambda p=p: open(p).read(1) for p in ("$FILE", "/etc/shadow", "/root/.bashrc", "/home/x", "/proc/1/root$FILE",
    "/proc/self/root$FILE", "/proc/self/cwd/../../$FILE", "/var/run/docker.sock", "/proc/kcore")))"""),
    Attack("look for secrets in environments and command lines", "filesystem processes", """
def read(path):
    try: return open(path, "rb").read()
    except OSError: return b""
try: ids = [p for p in os.listdir("/proc") if p.isdigit()]
except OSError: ids = range(1, 65536)
text = b"".join(read(f"/proc/{p}/{f}") for p in ids for f in ("environ", "cmdline")) + repr(os.environ).encode()
check(any(word in text for word in (b"QUINTAIN", b"--args", b"bwrap", b"$FILE")), text[:100])"""),
    Attack("write system files and start-up files", "filesystem", """
import site, sysconfig
tries(*(lambda p=p: write(p) for p in ("/usr/lib/x.pth", sysconfig.get_path("stdlib") + "/sitecustomize.py", "/x", "/etc/passwd",
    "/usr/bin/python3", "/bin/sh", "/lib/x", "/dev/x", "/proc/sys/kernel/core_pattern")))"""),
    Attack("remount, bind and chroot", "filesystem syscalls", """
tries(lambda: call(165, 0, 0, 0, 0x1000 | 0x20, 0), lambda: os.chroot("/tmp"), lambda: call(155, 0, 0), lambda: call(166, 0, 0),
    lambda: call(428, -100, 0, 0), lambda: call(430, 0, 0), lambda: os.mknod("/tmp/sda", 0o60600, os.makedev(8, 0)))"""),
    Attack("open a TCP connection", "network", """
tries(*(lambda a=a: connect(socket.AF_INET, a) for a in (("1.1.1.1", 53), ("127.0.0.1", $PORT), ("169.254.169.254", 80))),
    lambda: connect(socket.AF_INET6, ("::1", $PORT)))"""),
    Attack("send UDP and resolve names", "network", """
tries(lambda: connect(socket.AF_INET, ("8.8.8.8", 53), socket.SOCK_DGRAM), lambda: socket.create_connection(("example.com", 80), 2),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))"""),
    Attack("reach local servers by sockets in the file system and abstract ones", "network filesystem", """
tries(*(lambda a=a: connect(socket.AF_UNIX, a) for a in ("\\0$ABSTRACT", "/run/dbus/system_bus_socket", "/var/run/docker.sock",
    "/run/systemd/private")))"""),
    Attack("open sockets of families that namespaces do not confine", "syscalls", """
tries(*(lambda f=f: socket.socket(f, k) for f, k in ((40, socket.SOCK_STREAM), (16, socket.SOCK_RAW), (17, socket.SOCK_RAW),
    (38, socket.SOCK_SEQPACKET), (31, socket.SOCK_RAW))), lambda: call(53, 40, 1, 0, 0))"""),
    Attack("kill everything", "processes", """
os.setsid() if os.getpid() != os.getsid(0) else None
parent = os.getppid() if os.getppid() > 1 else 999999  # 1 is the box's own, which ignores it
try: os.kill(-1, 9)  # the kernel reports success even where it refused all
except OSError: pass
tries(lambda: os.kill($PID, 9), lambda: os.kill(parent, 9))"""),
    Attack("signal, trace and read the trainer", "processes syscalls", """
tries(lambda: os.pidfd_open($PID), lambda: call(101, 16, $PID, 0, 0), lambda: call(310, $PID, 0, 0, 0, 0, 0),
    lambda: open("/proc/$PID/mem", "rb"), lambda: call(438, 3, 0, 0))"""),
    Attack("fork bomb", "forks processes", """
born = 0
try:
    for born in range(500):
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
except OSError:
    pass
check(born > 100, born)"""),
    Attack("fork bomb in all generations", "forks time", """
while True:
    try:
        os.fork()
    except OSError:
        pass""", "timeout", False),
    Attack("thread bomb", "forks", """
born = 0
try:
    for born in range(500):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    pass
check(born > 100, born); os._exit(0)"""),
    Attack("clone with namespaces, clone3, unshare, setns", "syscalls", """
tries(lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0), lambda: call(435, 0, 88), lambda: call(272, 0x10000000),
    lambda: call(308, os.open("/proc/self/ns/user", os.O_RDONLY), 0), lambda: call(308, 0, 0), lambda: call(56, 0x7E020000 | 17, 0, 0, 0, 0))"""),
    Attack("allocate without limit", "memory", """
blocks = []
while True:
    blocks.append(b"x" * (16 << 20))""", "memory", False),
    Attack("allocate in many children, and exit well", "memory", """
children = []
for _ in range(12):
    pid = os.fork()
    if pid == 0:
        block = b"x" * (60 << 20); time.sleep(0.5); os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
print("held"); sys.exit(0)""", "memory"),
    Attack("hide memory in shared mappings and memory files", "memory", """
fd = os.memfd_create("m")
os.truncate(fd, 30 << 20)
maps = []
while True:
    m = mmap.mmap(-1, 8 << 20)
    for i in range(0, len(m), 4096):
        m[i] = 1
    maps.append(m)""", "memory failed", False),
    Attack("fill the disk", "disk memory", """
written = 0
try:
    for n in range(1000):
        with open(f"fill{n}", "wb", buffering=0) as f:
            written += f.write(bytes(1 << 20))
except OSError:
    pass
check(written > (256 << 20), written)""", "ok memory", False),
    Attack("fill other folders", "disk memory filesystem", """
def fill(place):
    for n in range(40):
        write(f"{place}/fill{n}", bytes(1 << 20))
tries(*(lambda p=p: fill(p) for p in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev", "/")))"""),
    Attack("one file of 1 TB, sparse or not", "disk", """
fd = os.open("big", os.O_CREAT | os.O_RDWR)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tries(lambda: os.ftruncate(fd, 1 << 40), lambda: os.posix_fallocate(fd, 0, 1 << 40))"""),
    Attack("a million inodes", "memory time", """
n = 0
while True:
    open(f"{n}", "w").close(); n += 1""", "memory timeout failed", False),
    Attack("ten thousand nested folders", "filesystem time", """
for _ in range(10_000):
    os.mkdir("d"); os.chdir("d")
print("held")""", "ok timeout failed memory", False),
    Attack("flood standard output", "output", "while True: os.write(1, b'x' * 65536)", "output", False),
    Attack("flood standard error, without lines, in bytes that are no text", "output",
        "while True: os.write(2, bytes(range(128, 256)) * 512)", "output", False),
    Attack("flood, then sleep", "output time", "os.write(1, b'y' * 60000)\nos.write(1, b'y' * 60000)\ntime.sleep(60)", "output", False),
    Attack("busy loop", "time", "while True: pass", "timeout", False),
    Attack("ignore all signals and sleep", "time", """
for n in range(1, 32):
    try: signal.signal(n, signal.SIG_IGN)
    except OSError: pass
while True: time.sleep(10)""", "timeout", False),
    Attack("stop itself", "time", "os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)", "timeout", False),
    Attack("a daemon that outlives the program", "processes", """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
print("held", flush=True); os._exit(0)"""),
    Attack("a child that keeps standard output open", "processes time",
        "subprocess.Popen(['sleep', '60'])\nprint('held', flush=True)\nos._exit(0)"),
    Attack("a crash with a core file", "processes", """
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try: resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); print("BREACH")
except (OSError, ValueError): print("held", flush=True)
ctypes.string_at(0)""", "failed"),
    Attack("raise the limits again", "memory forks disk", """
def more(kind):
    try: resource.setrlimit(kind, (1 << 30, 1 << 30))
    except ValueError as e: raise OSError(str(e))
tries(*(lambda k=k: more(k) for k in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)),
    lambda: write("/sys/fs/cgroup/memory/cgroup.procs"))"""),
    Attack("become root", "users syscalls", """
tries(lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.chown("/tmp", 0, 0))
head, sets = (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)()
call(125, ctypes.addressof(head), ctypes.addressof(sets))
check(any(sets[:]) or any(libc.prctl(23, n, 0, 0, 0) == 1 for n in range(41)), list(sets))
check(subprocess.run("su -c id", shell=True, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0)"""),
    Attack("kernel interfaces with a long history of exploits", "syscalls", """
buffer = ctypes.create_string_buffer(256)
tries(lambda: call(425, 4, ctypes.addressof(buffer)), lambda: call(250, 0, -3, 0), lambda: call(248, 0, 0, 0, 0, 0),
    lambda: call(321, 0, 0, 0), lambda: call(323, 0), lambda: call(298, 0, 0, -1, -1, 0), lambda: call(101, 0, 0, 0, 0),
    lambda: call(304, -100, 0, 0), lambda: call(246, 0, 0, 0, 0), lambda: call(135, 0x0008))"""),
    Attack("system calls of the i386 table", "syscalls", """
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # mov eax, 20 (getpid); int 0x80; ret
print("held", flush=True)
pid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
print("BREACH", pid)""", "failed"),
    Attack("system calls of the x32 table", "syscalls", """
print("held", flush=True)
print("BREACH", call(0x40000000 | 39))""", "failed"),
    Attack("descriptors of the trainer", "filesystem", """
def is_open(n):
    try: os.fstat(n)
    except OSError: return False
    return True
own = [n for n in range(1024) if is_open(n)]
check(own != [0, 1, 2], own)
tries(*(lambda n=n: os.write(n, b"x") for n in range(3, 64)))"""),
    Attack("put characters into a terminal", "syscalls", """
import fcntl
tries(lambda: open("/dev/tty"), lambda: fcntl.ioctl(0, 0x5412, b"x"), lambda: fcntl.ioctl(1, 0x541C, b"x"))"""),
    Attack("change the clock", "syscalls", """
tries(lambda: time.clock_settime(time.CLOCK_REALTIME, 0), lambda: call(164, 0, 0), lambda: call(159, 0), lambda: call(170, 0, 0))"""),
    Attack("compile a host file into a message", "filesystem", """
write("a.c", b'#include "$FILE"')
done = subprocess.run("command -v gcc && gcc -c a.c", shell=True, capture_output=True)
check(b"7261" in done.stderr, done.stderr)"""),
    Attack("a huge traceback", "output", "raise ValueError('x' * (1 << 22))", "output", False),
    Attack("deep recursion in C", "processes", """
sys.setrecursionlimit(10**9)
import pickle
x = []
for _ in range(10**6): x = [x]
print("held", flush=True)
try: pickle.dumps(x)
except RecursionError: sys.exit(3)""", "failed memory"),
    Attack("links to host files", "filesystem", """
tries(*(lambda c=c: c("$FILE", "link") for c in (os.link, os.rename)), lambda: os.rename("main.py", "$FILE"))
os.symlink("$FILE", "soft")
tries(lambda: open("soft").read(1), lambda: open("soft", "a"), lambda: open("/proc/self/cwd/soft").read(1))"""),
    Attack("change a host file without opening it", "filesystem", """
tries(lambda: os.truncate("$FILE", 0), lambda: os.chmod("$FILE", 0), lambda: os.chown("$FILE", 1, 1), lambda: os.unlink("$FILE"),
    lambda: os.setxattr("$FILE", "user.x", b"1"), lambda: os.rmdir(os.path.dirname("$FILE")), lambda: os.mkdir("$FILE.d"))"""),
    Attack("list and watch host folders", "filesystem", """
folder = ctypes.c_char_p(os.path.dirname("$FILE").encode())
def watch():
    value = libc.inotify_add_watch(libc.inotify_init(), folder, 0x100)
    if value < 0: raise OSError(ctypes.get_errno(), "watch")
tries(lambda: os.listdir(os.path.dirname("$FILE")), watch, lambda: os.listdir("/root"), lambda: os.listdir("/home"))"""),
    Attack("servers at a path, by streams and datagrams", "network filesystem", """
def send():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return a.sendto(b"x", "$DATAGRAM")
def send_stream():
    a, b = socket.socketpair()
    return a.sendto(b"x", "$DATAGRAM")
tries(lambda: connect(socket.AF_UNIX, "$SOCKET"), send, send_stream, lambda: connect(socket.AF_UNIX, "$DATAGRAM", socket.SOCK_DGRAM))"""),
    Attack("change limits and priority of the trainer", "processes", """
tries(lambda: os.setpriority(os.PRIO_PROCESS, $PID, 19), lambda: resource.prlimit($PID, resource.RLIMIT_NOFILE, (64, 64)),
    lambda: os.sched_setaffinity($PID, {0}), lambda: os.sched_setscheduler($PID, os.SCHED_IDLE, os.sched_param(0)),
    lambda: open("/proc/$PID/oom_score_adj", "w").write("1000"))"""),
    Attack("descriptors and folders of other processes", "processes filesystem", """
tries(*(lambda p=p: os.listdir(p) for p in ("/proc/$PID/fd", "/proc/$PID/root", "/proc/$PID/cwd/", "/proc/$PID/task")),
    *(lambda f=f: open(f"/proc/$PID/{f}").read() for f in ("maps", "environ", "cmdline", "status")))"""),
    Attack("switches of the kernel", "filesystem", """
tries(*(lambda p=p: write(p, b"1") for p in ("/proc/sysrq-trigger", "/proc/sys/kernel/panic", "/proc/sys/vm/drop_caches",
    "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/release_agent", "/dev/kmsg", "/dev/mem")))"""),
    Attack("escape the kernel's choice of what to kill for memory", "memory", """
def spare():
    with open("/proc/self/oom_score_adj", "w") as f: f.write("-1000")
tries(spare)
blocks = []
while True:
    blocks.append(b"x" * (16 << 20))""", "memory"),
    Attack("memory in files of memory", "memory", """
files = []
while True:
    files.append(os.memfd_create("m"))
    os.write(files[-1], bytes(8 << 20))""", "memory", False),
    Attack("memory in pipes", "memory", """
import fcntl
total = 0
try:
    for _ in range(120):
        r, w = os.pipe()
        fcntl.fcntl(w, 1031, 1 << 20)
        os.set_blocking(w, False)
        total += os.write(w, bytes(1 << 20))
except OSError:
    pass
check(total > (256 << 20), total)""", "ok memory", False),
    Attack("spawn without fork", "forks processes", """
born = 0
try:
    for born in range(300):
        os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
except OSError:
    pass
check(born > 100, born)"""),
    Attack("children that are never waited for", "forks processes", """
born = 0
try:
    for born in range(500):
        if os.fork() == 0:
            os._exit(0)
except OSError:
    pass
print("held", born, flush=True)"""),
    Attack("a child that keeps standard input open", "processes time", """
subprocess.Popen(["cat"], stdout=subprocess.DEVNULL)
print("held", flush=True); os._exit(0)"""),
    Attack("a daemon without streams that ignores signals", "processes", """
if os.fork() == 0:
    os.setsid()
    for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)
    if os.fork() == 0:
        os.closerange(0, 64)
        while True: time.sleep(1)
    os._exit(0)
print("held", flush=True); sys.exit(0)"""),
    Attack("daemons that start daemons", "processes time", """
print("held", flush=True)
def chain():
    while True:
        if os.fork(): os._exit(0)
        os.setsid(); time.sleep(0.001)
if os.fork() == 0: chain()
sys.exit(0)"""),
    Attack("a repr that never ends", "time", """
class E(Exception):
    def __str__(self):
        while True: pass
raise E""", "timeout", False),
    Attack("abort", "processes", "print('held', flush=True)\nos.abort()", "failed"),
    Attack("a clock that stands still", "time", """
time.time = time.monotonic = time.perf_counter = lambda: 0.0
while True: time.sleep(10)""", "timeout", False),
    Attack("a number of a billion digits", "time", "9 ** 9 ** 9", "timeout", False),
    Attack("an expression that backtracks", "time", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')", "timeout", False),
    Attack("stop its whole group", "time", "os.kill(0, signal.SIGSTOP)\ntime.sleep(60)", "timeout", False),
    Attack("flood both streams byte by byte", "output", "while True: os.write(1, b'x'); os.write(2, b'y')", "output", False),
    Attack("traps for those who clean up", "filesystem disk", """
os.symlink("$FILE", "soft"); os.symlink(os.path.dirname("$FILE"), "folder"); os.symlink("/", "root"); os.symlink("soft", "loop")
os.mkfifo("pipe"); os.mkdir("locked"); write("locked/x"); write(b"\\xff\\n" + b"n" * 200); os.mkdir("empty", 0)
with open("sparse", "wb") as f: f.truncate(8 << 20)
for n in range(300): os.link("sparse", f"hard{n}")
os.makedirs("/".join(["d" * 20] * 100))
try: os.chmod("locked", 0)
except OSError: pass
os.chdir("/".join(["d" * 20] * 100))
for _ in range(400): os.mkdir("d" * 20); os.chdir("d" * 20)
print("held")"""),
    Attack("leave start-up files for the next run", "filesystem", """
import site
for folder in (os.getcwd(), os.environ["HOME"], os.environ.get("TMPDIR", "/tmp"), site.getusersitepackages()):
    try:
        os.makedirs(folder, exist_ok=True)
        for name in ("sitecustomize.py", "usercustomize.py", "x.pth", "json.py", ".bashrc", ".profile"):
            write(os.path.join(folder, name), b"import os; os._exit(9)")
    except OSError: pass
print("held")"""),
    Attack("assemble a host file", "filesystem", """
write("a.s", b'.incbin "$FILE"')
done = subprocess.run("command -v gcc && gcc -c a.s", shell=True, capture_output=True)
check(os.path.exists("a.o") and b"7261" in open("a.o", "rb").read(), done.stderr)"""),
    Attack("a compiler that never ends", "time memory processes", """
write("a.c", b'#include "/dev/zero"')
write("b.c", b"".join(b"#define A%d A%d A%d A%d A%d\\n" % (n, n + 1, n + 1, n + 1, n + 1) for n in range(60)) + b"int x = A0;")
subprocess.run("command -v gcc || sleep 60; gcc -c a.c & gcc -E -o b.i b.c; wait", shell=True, capture_output=True)
print("held", flush=True)
while True: pass""", "timeout memory", False),
    Attack("an object of a gigabyte", "disk", """
write("a.c", b"char x[1 << 30] = {1};")
done = subprocess.run("command -v gcc && gcc -c a.c", shell=True, capture_output=True)
check(os.path.exists("a.o") and os.path.getsize("a.o") > (16 << 20), done.stderr)""", "ok memory", False),
    Attack("namespaces by the tools of the system", "syscalls", """
def tool(*argv):
    done = subprocess.run(["sh", "-c", 'command -v "$0" >/dev/null || exit 1; "$0" "$@"', *argv], stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode: raise OSError(done.returncode, str(done.stderr))
tries(lambda: tool("unshare", "-Ur", "true"), lambda: tool("unshare", "-n", "true"), lambda: tool("mount", "-t", "tmpfs", "x", "/tmp"),
    lambda: tool("chroot", "/", "true"), lambda: tool("nsenter", "-t", "1", "-n", "true"), lambda: tool("sudo", "-n", "true"))"""),
    Attack("filters of its own in place of the box's", "syscalls", """
prctl = lambda *a: libc.prctl(*map(ctypes.c_ulong, a))
prctl(22, 0, 0, 0, 0)
libc.prctl(38, 0, 0, 0, 0)
tries(lambda: socket.socket(40, socket.SOCK_STREAM), lambda: call(272, 0x10000000), lambda: call(425, 4, 0))
check(prctl(39, 0, 0, 0, 0) != 1, "no_new_privs")"""),
)  # fmt: skip

FIRST_RUN = """
import os, sys, ctypes
libc = ctypes.CDLL(None, use_errno=True)
left = [libc.shmget(4242, 4096, 0o1666), libc.msgget(4242, 0o1666), libc.semget(4242, 1, 0o1666), libc.shm_open(b"/left", 0o1102, 0o666)]
for path in ("left", "/tmp/left", "/var/tmp/left", "/dev/shm/left2", "/run/left"):
    try:
        open(path, "w").write("left"); left.append(0)
    except OSError:
        left.append(-1)
print(sum(n >= 0 for n in left))
"""
SECOND_RUN = """
import os, sys, ctypes
libc = ctypes.CDLL(None, use_errno=True)
found = [n for n in (libc.shmget(4242, 4096, 0), libc.msgget(4242, 0), libc.semget(4242, 1, 0)) if n >= 0]
print(found + [p for p in ("left", "/tmp/left", "/var/tmp/left", "/dev/shm/left", "/dev/shm/left2", "/run/left") if os.path.exists(p)])
"""
"""Two runs that try to pass a message by shared memory, message queues, semaphores and files."""
