"""Canaries: small programs that try what each axis forbids. What they report is what the provider guarantees.

A canary that cannot run proves nothing, so its axis is absent.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from typing import Any

from quintain import InfrastructureError

from .bpf import MACHINES
from .protocol import AXES, Guarantee, ProbedSandbox, ProgramLimits, ProgramResult

LIMITS = ProgramLimits(seconds=20.0, memory=128 << 20, processes=24, disk=8 << 20, output=1 << 16)
"""Small where a canary reaches them, and long in time, because the machine may be loaded."""

LOOK = r"""
import ctypes, errno, json, os, socket, sys
wanted = json.loads(sys.stdin.read())
def refused(call):
    try:
        call()
    except OSError:
        return True
    return False
def family(number):
    try:
        socket.socket(number, socket.SOCK_STREAM).close()
    except OSError as e:
        return e.errno == errno.EAFNOSUPPORT
    return False
def connect(address, kind):
    with socket.socket(kind, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect(address)
libc = ctypes.CDLL(None, use_errno=True)
def fails(*arguments):
    return libc.syscall(*map(ctypes.c_long, arguments)) == -1
def fill(path):
    with open(path, "wb") as f:
        for _ in range(64):
            f.write(bytes(1 << 20))
        f.flush()
written = 0
def fill_many():
    for n in range(16):
        with open(f"/tmp/fill{n}", "wb", buffering=0) as f:
            f.write(bytes(4 << 20))
print(json.dumps({
    "filesystem": refused(lambda: open(wanted["file"])) and refused(lambda: open("/usr/canary", "w"))
        and refused(lambda: open("/canary", "w")),
    "network": refused(lambda: connect(("127.0.0.1", wanted["port"]), socket.AF_INET))
        and refused(lambda: connect("\0" + wanted["abstract"], socket.AF_UNIX))
        and {line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]} <= {"lo"},
    "processes": os.getpid() < 100 and {p for p in os.listdir("/proc") if p.isdigit()} <= {"1", str(os.getpid())},
    "disk": refused(lambda: fill("/tmp/one")) and refused(fill_many) and refused(lambda: fill("/dev/shm/one")),
    "syscalls": family(40) and family(16) and family(17) and fails(wanted["unshare"], 0x10000000)
        and fails(wanted["io_uring_setup"], 1, 0) and fails(wanted["keyctl"], 0, -3, 0),
}))
"""
MEMORY = r"""
import os, time
children = []
for _ in range(4):  # each of them is below the limit, their sum is above
    pid = os.fork()
    if pid == 0:
        block = b"x" * %(share)d
        time.sleep(0.5)
        os._exit(0)
    children.append(pid)
print({os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) for _ in children}, flush=True)
"""
MEMORY_ALONE = "b'x' * %(all)d"
FORKS = r"""
import os, time
born = 0
for _ in range(100):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    born += 1
print(born, flush=True)
os._exit(0)
"""
OUTPUT = "import os\nwhile True: os.write(1, bytes(65536))"
TIME = """
import signal, time
for n in range(1, 32):
    try:
        signal.signal(n, signal.SIG_IGN)
    except OSError:
        pass
while True:
    time.sleep(1)
"""


async def measure(sandbox: ProbedSandbox) -> dict[str, Guarantee]:
    """Run the canaries in *sandbox*; the guarantee of each axis."""
    checks = (_look, _memory, _forks, _output)
    found: dict[str, Guarantee] = dict.fromkeys(AXES, Guarantee.ABSENT)
    for levels in await asyncio.gather(*(check(sandbox) for check in checks)):
        found.update(levels)
    return found | await _time(sandbox)  # alone, because the others load the machine


async def _python(sandbox: ProbedSandbox, code: str, stdin: str = "", seconds: float = LIMITS.seconds) -> ProgramResult:
    limits = LIMITS if seconds == LIMITS.seconds else ProgramLimits(seconds=seconds)
    return await sandbox.run({}, ["python3", "-I", "-c", code], stdin.encode(), limits)


async def _look(sandbox: ProbedSandbox) -> dict[str, Guarantee]:
    """Try to reach a file, a server and an abstract socket of this process, and to make forbidden system calls."""
    with tempfile.NamedTemporaryFile("w", suffix="-canary") as canary:
        os.fchmod(canary.fileno(), 0o644)
        return await _look_for(sandbox, canary.name)


async def _look_for(sandbox: ProbedSandbox, canary: str) -> dict[str, Guarantee]:
    calls = MACHINES[os.uname().machine][1]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + canary)
        listener.listen()
        wanted = {"file": canary, "port": server.getsockname()[1], "abstract": canary}
        wanted |= {name: calls[name] for name in ("unshare", "io_uring_setup", "keyctl")}
        result = await _python(sandbox, LOOK, json.dumps(wanted))
    try:
        saw: dict[str, Any] = json.loads(result.stdout)
    except ValueError as e:
        said = result.stderr[-500:].decode("utf-8", "replace")
        raise InfrastructureError(f"a canary of the sandbox ended with {result.status}: {said}") from e
    levels = {axis: Guarantee.ENFORCED if kept is True else Guarantee.ABSENT for axis, kept in saw.items()}
    own = result.usage.user not in (0, os.getuid(), None)
    return levels | {"users": Guarantee.ENFORCED if own else Guarantee.ABSENT}


async def _memory(sandbox: ProbedSandbox) -> dict[str, Guarantee]:
    together = await _python(sandbox, MEMORY % {"share": LIMITS.memory // 2})
    if together.status == "memory":
        return {"memory": Guarantee.ENFORCED}
    alone = await _python(sandbox, MEMORY_ALONE % {"all": LIMITS.memory * 2})
    return {"memory": Guarantee.BEST_EFFORT if alone.status in ("failed", "memory") else Guarantee.ABSENT}


async def _forks(sandbox: ProbedSandbox) -> dict[str, Guarantee]:
    result = await _python(sandbox, FORKS)
    born = int(result.stdout) if result.stdout.strip().isdigit() else 100
    return {"forks": Guarantee.ENFORCED if born <= LIMITS.processes else Guarantee.ABSENT}


async def _output(sandbox: ProbedSandbox) -> dict[str, Guarantee]:
    result = await _python(sandbox, OUTPUT)
    kept = result.status == "output" and len(result.stdout) == LIMITS.output
    return {"output": Guarantee.ENFORCED if kept else Guarantee.ABSENT}


async def _time(sandbox: ProbedSandbox) -> dict[str, Guarantee]:
    """On a loaded machine a kill may be late once; the axis is best effort only if every one is late."""
    for seconds in (0.2, 0.3, 0.5, 1.0, 1.0):
        result = await _python(sandbox, TIME, seconds=seconds)
        if result.status == "timeout" and result.usage.seconds <= seconds + 0.25:
            return {"time": Guarantee.ENFORCED}
    return {"time": Guarantee.BEST_EFFORT if result.status == "timeout" else Guarantee.ABSENT}
