# ruff: noqa: E501 - programs as text
"""Programs for the tests of sandboxes: attacks with the guarantees that they need, and honest programs.

An attack prints ``BREACH`` where it reached something and ``held`` where it was refused. ``$FILE``, ``$PORT``,
``$ABSTRACT`` and ``$PID`` stand for a file, a server, an abstract socket and the process of the host.
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
text = b"".join(open(f"/proc/{p}/{f}", "rb").read() for p in os.listdir("/proc") if p.isdigit() for f in ("environ", "cmdline"))
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
tries(lambda: os.kill($PID, 9), lambda: os.kill(-1, 9), lambda: os.kill(parent, 9))"""),
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
fd = os.open("/proc/self/ns/user", os.O_RDONLY)
tries(lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0), lambda: call(435, 0, 88), lambda: call(272, 0x10000000),
    lambda: call(308, fd, 0), lambda: call(56, 0x7E020000 | 17, 0, 0, 0, 0))"""),
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
        with open(f"/tmp/{n}", "wb", buffering=0) as f:
            written += f.write(bytes(1 << 20))
except OSError:
    pass
check(written > (20 << 20), written)"""),
    Attack("one file of 1 TB, sparse or not", "disk", """
fd = os.open("/tmp/big", os.O_CREAT | os.O_RDWR)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tries(lambda: os.ftruncate(fd, 1 << 40), lambda: os.posix_fallocate(fd, 0, 1 << 40))"""),
    Attack("a million inodes", "memory time", """
n = 0
while True:
    open(f"/tmp/{n}", "w").close(); n += 1""", "memory timeout failed", False),
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
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd", "CapPrm"))]
check(any(int(c, 16) for c in caps), caps)
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
own = sorted(int(n) for n in os.listdir("/proc/self/fd"))
check(own[:3] != [0, 1, 2] or len(own) > 4, own)
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
)  # fmt: skip

FIRST_RUN = """
import os, sys, ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(4242, 4096, 0o1666), libc.msgget(4242, 0o1666))
fd = libc.shm_open(b"/left", 0o1102, 0o666); print(fd)
open("/tmp/left", "w").write("left"); open("/dev/shm/left2", "w").write("left")
"""
SECOND_RUN = """
import os, sys, ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(4242, 4096, 0), libc.msgget(4242, 0), os.listdir("/tmp"), os.listdir("/dev/shm"))
"""
"""Two runs that try to pass a message by shared memory, message queues and files."""

HONEST = {
    "print": ("print(42)", "42"),
    "sum of standard input": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "6"),
    "lines of standard input": ("print(input(), input(), input())", "1 2 3"),
    "big output": ("print(len('x' * 60000)); print('x' * 60000, file=__import__('sys').stderr)", "60000"),
    "unicode": ("print('äöü 中文 🎉')", "äöü 中文 🎉"),
    "threads": (
        "import threading\nr = []\nt = [threading.Thread(target=r.append, args=(i,)) for i in range(12)]\n"
        "[x.start() for x in t]; [x.join() for x in t]\nprint(sum(r))",
        "66",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor as T\nwith T(8) as t: print(sum(t.map(abs, range(-9, 0))))",
        "45",
    ),
    "process pool": (
        "import multiprocessing as m\nif __name__ == '__main__':\n    with m.Pool(3) as p: print(sum(p.map(abs, range(-9, 0))))",
        "45",
    ),
    "subprocess": ("import subprocess\nprint(subprocess.check_output(['echo', 'hi']).decode())", "hi"),
    "shell pipeline": ("import os\nos.system('seq 1 5 | sort -r | head -1')", "5"),
    "asyncio": (
        "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 7\nprint(sum(asyncio.run(f()) for _ in range(3)))",
        "21",
    ),
    "recursion of 10,000 frames": (
        "import sys, threading\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(10000))",
        "10000",
    ),
    "temporary file": (
        "import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))",
        "3",
    ),
    "write and read in the working directory": ("open('a','w').write('hi')\nprint(open('a').read())", "hi"),
    "a second module": ("import helper\nprint(helper.VALUE)", "11"),
    "a package in folders": ("from pkg.sub.mod import VALUE\nprint(VALUE)", "12"),
    "read a data file": ("import json\nprint(json.load(open('data.json'))['x'])", "5"),
    "sqlite": (
        "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t(a)'); c.execute('insert into t values (4)')\n"
        "c.commit(); print(c.execute('select a from t').fetchone()[0])",
        "4",
    ),
    "local server": (
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=lambda: s.accept()[0].send(b'ok')).start()\n"
        "print(socket.create_connection(s.getsockname()).recv(2).decode())",
        "ok",
    ),
    "pair of sockets": ("import socket\na, b = socket.socketpair(); a.send(b'q'); print(b.recv(1).decode())", "q"),
    "decimal and fractions": (
        "from decimal import Decimal\nfrom fractions import Fraction\nprint(Decimal(1) / 8, Fraction(1, 3) * 3)",
        "0.125 1",
    ),
    "regular expressions": ("import re\nprint(re.sub('[aeiou]', '', 'sandbox'))", "sndbx"),
    "big integers": ("print(len(str(2 ** 10000)))", "3011"),
    "random with a seed": ("import random\nrandom.seed(1)\nprint(random.randint(1, 100))", "18"),
    "date": ("import datetime\nprint(datetime.date(2024, 2, 28) + datetime.timedelta(2))", "2024-03-01"),
    "sleep": ("import time\ntime.sleep(0.2)\nprint('up')", "up"),
    "slow but in time": ("x = 0\nfor i in range(3_000_000): x += i\nprint(x)", "4499998500000"),
    "80 MB of memory": ("x = bytearray(80_000_000)\nprint(len(x))", "80000000"),
    "10 MB in a file": (
        "open('big', 'wb').write(bytes(10_000_000))\nimport os\nprint(os.path.getsize('big'))",
        "10000000",
    ),
    "signal handler": (
        "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *a: print('got'))\nos.kill(os.getpid(), signal.SIGUSR1)",
        "got",
    ),
    "alarm handler": (
        "import signal, time\ndef f(*a): print('rang'); raise SystemExit\nsignal.signal(signal.SIGALRM, f)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(2)",
        "rang",
    ),
    "fork and wait": (
        "import os\np = os.fork()\nif not p: os._exit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))",
        "3",
    ),
    "mmap": ("import mmap\nm = mmap.mmap(-1, 4096); m[0:2] = b'ok'; print(m[0:2].decode())", "ok"),
    "gzip and hashes": (
        "import gzip, hashlib\nprint(len(gzip.decompress(gzip.compress(b'x' * 999))), hashlib.md5(b'').hexdigest()[:4])",
        "999 d41d",
    ),
    "unittest": (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\n"
        "r = unittest.main(exit=False).result\nprint(r.testsRun, r.wasSuccessful())",
        "1 True",
    ),
    "ctypes": ("import ctypes\nprint(ctypes.CDLL(None).abs(-5))", "5"),
    "user and home": (
        "import getpass, os\nprint(getpass.getuser(), os.path.expanduser('~') == os.getcwd())",
        "nobody True",
    ),
    "named pipe": (
        "import os, threading\nos.mkfifo('p')\nthreading.Thread(target=lambda: open('p', 'w').write('via')).start()\n"
        "print(open('p').read())",
        "via",
    ),
    "shared memory": (
        "from multiprocessing import shared_memory as m\ns = m.SharedMemory(create=True, size=8); s.buf[0] = 9\n"
        "print(s.buf[0]); s.close(); s.unlink()",
        "9",
    ),
    "lock of a file": ("import fcntl\nf = open('l', 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('locked')", "locked"),
}
"""Name to the code and what it prints; standard input is ``1``, ``2``, ``3``."""
FILES = {"helper.py": b"VALUE = 11\n", "pkg/sub/mod.py": b"VALUE = 12\n", "data.json": b'{"x": 5}'}
