"""Canaries: small programs that try what each axis forbids. What they report is what the provider
guarantees.

A canary that cannot run proves nothing, so its axis is absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from quintain import InfrastructureError

from .axes import AXES, Guarantee
from .bpf import MACHINES
from .program import ProgramLimits, ProgramResult

LIMITS = ProgramLimits(seconds=20.0, memory=128 << 20, processes=24, disk=8 << 20, output=1 << 16)
"""Small where a canary reaches them, and long in time, because the machine may be loaded."""

DIE_SECONDS = 5.0
"""How long a killed process may take to be gone: on a loaded machine it waits for a core to end
on.
"""

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
def connect(address, family, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(1)
        s.connect(address)
        s.send(b"x")
def send(path):
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pair[0].sendto(b"x", path)
def interfaces():
    with open("/proc/net/dev") as file:
        return {line.split(":")[0].strip() for line in file.readlines()[2:]}
try:
    listed = {p for p in os.listdir("/proc") if p.isdigit()} - {"1", str(os.getpid())}
except OSError:
    listed = set()
libc = ctypes.CDLL(None, use_errno=True)
def fails(*arguments):
    return libc.syscall(*map(ctypes.c_long, arguments)) == -1
host, file, pid = wanted["folder"], wanted["file"], wanted["pid"]
print(json.dumps({
    "filesystem": all(map(refused, (
        lambda: open(file), lambda: open(file, "a"), lambda: os.truncate(file, 0), lambda: os.chmod(file, 0o600),
        lambda: os.listdir(host), lambda: os.mkdir(host + "/made"), lambda: open("/usr/canary", "w"),
        lambda: open("/canary", "w")))),
    "network": all(map(refused, (
        lambda: connect(("127.0.0.1", wanted["port"]), socket.AF_INET),
        lambda: connect("\0" + wanted["abstract"], socket.AF_UNIX), lambda: connect(host + "/stream", socket.AF_UNIX),
        lambda: send(host + "/datagram")))) and (family(socket.AF_INET) or interfaces() <= {"lo"}),
    "processes": not listed and (pid in (1, os.getpid()) or all(map(refused, (  # its number may be one of this box
        lambda: os.kill(pid, 0), lambda: open(f"/proc/{pid}/cmdline"),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))))) and (os.getppid() <= 1
        or refused(lambda: os.kill(os.getppid(), 0))),
    "syscalls": family(40) and family(16) and family(17) and fails(wanted["unshare"], 0x10000000)
        and fails(wanted["io_uring_setup"], 1, 0) and fails(wanted["keyctl"], 0, -3, 0),
}))
"""
STAY = r"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sh", ["sh", "-c", "sleep 60; :", "%s"])
    os._exit(0)
os.wait()
"""
DISK = r"""
import os
def refused(path, size):
    try:
        with open(path, "wb", buffering=0) as f:
            for _ in range(size >> 20):
                f.write(bytes(1 << 20))
    except OSError:
        return True
    return False
def bounded(place, size):
    names = [f"{place}/fill{os.getpid()}-{n}" for n in range(size >> 22)]
    kept = any(refused(name, 4 << 20) for name in names)
    for name in names:
        if os.path.exists(name):
            os.unlink(name)
    return kept
whole = refused("one", %(one)d)
os.unlink("one")
small = [bounded(place, %(some)d) for place in ("/tmp", "/var/tmp", "/dev/shm")]
print(whole and all(small) and bounded(".", %(all)d))
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


class ProgramRunner(Protocol):
    """`ProbedSandbox.run`."""

    async def __call__(
        self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes, limits: ProgramLimits
    ) -> ProgramResult: ...


async def measure(run: ProgramRunner) -> dict[str, Guarantee]:
    """Run the canaries; the guarantee of each axis.

    Raises:
        InfrastructureError: the sandbox failed.
        OSError: the host has no room for them.
    """
    checks = (_look, _disk, _memory, _forks, _output)
    guarantees: dict[str, Guarantee] = dict.fromkeys(AXES, Guarantee.ABSENT)
    for levels in await asyncio.gather(*(check(run) for check in checks)):
        guarantees.update(levels)
    return guarantees | await _time(run)  # alone, because the others load the machine


async def _python(
    run: ProgramRunner, code: str, stdin: str = "", seconds: float = LIMITS.seconds
) -> ProgramResult:
    limits = LIMITS if seconds == LIMITS.seconds else ProgramLimits(seconds=seconds)
    return await run({}, ["python3", "-I", "-c", code], stdin.encode(), limits)


async def _look(run: ProgramRunner) -> dict[str, Guarantee]:
    """Try to reach a file, servers and processes of the host, to stay, and to make forbidden system
    calls.
    """
    with (
        tempfile.TemporaryDirectory(suffix="-canary") as folder,
        tempfile.NamedTemporaryFile(dir=folder) as file,
    ):
        os.chmod(folder, 0o777)  # so that only the box protects it
        os.fchmod(file.fileno(), 0o666)
        levels = await _look_around(run, folder, file.name)
    token = secrets.token_hex(16)
    await _python(run, STAY % token)
    deadline = time.monotonic() + DIE_SECONDS
    while _runs(token):
        if time.monotonic() > deadline:
            return levels | {"processes": Guarantee.ABSENT}
        await asyncio.sleep(0.02)
    return levels


def _runs(token: str) -> bool:
    """Return whether a process of this machine has *token* on its command line."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if token.encode() in file.read_bytes():
                return True
    return False


async def _look_around(run: ProgramRunner, folder: str, file: str) -> dict[str, Guarantee]:
    calls = MACHINES[os.uname().machine][1]
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for place, kind in {
            f"\0{folder}": socket.SOCK_STREAM,
            f"{folder}/stream": socket.SOCK_STREAM,
            f"{folder}/datagram": socket.SOCK_DGRAM,
        }.items():
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            listener.bind(place)
            if kind is socket.SOCK_STREAM:
                listener.listen()
            if not place.startswith("\0"):
                os.chmod(place, 0o777)
        wanted = {
            "folder": folder,
            "file": file,
            "port": server.getsockname()[1],
            "abstract": folder,
        }
        wanted |= {name: calls[name] for name in ("unshare", "io_uring_setup", "keyctl")} | {
            "pid": os.getpid()
        }
        result = await _python(run, LOOK, json.dumps(wanted))
    try:
        saw: dict[str, Any] = json.loads(result.stdout)
    except ValueError as e:
        error_text = result.stderr[-500:].decode("utf-8", "replace")
        raise InfrastructureError(
            f"a canary of the sandbox ended with {result.status}: {error_text}"
        ) from e
    levels = {
        axis: Guarantee.ENFORCED if kept is True else Guarantee.ABSENT for axis, kept in saw.items()
    }
    has_own_user = result.usage.user not in (0, os.getuid(), None)
    return levels | {"users": Guarantee.ENFORCED if has_own_user else Guarantee.ABSENT}


async def _disk(run: ProgramRunner) -> dict[str, Guarantee]:
    """Try to write files that together exceed what memory and disk may have; memory may be what
    ends it.
    """
    sizes = {
        "one": 8 * LIMITS.disk,
        "some": 3 * LIMITS.disk,
        "all": LIMITS.memory + 3 * LIMITS.disk,
    }
    result = await _python(run, DISK % sizes)
    kept = result.stdout.strip() == b"True" or result.status == "memory"
    return {"disk": Guarantee.ENFORCED if kept else Guarantee.ABSENT}


async def _memory(run: ProgramRunner) -> dict[str, Guarantee]:
    together = await _python(run, MEMORY % {"share": LIMITS.memory // 2})
    if together.status == "memory":
        return {"memory": Guarantee.ENFORCED}
    alone = await _python(run, MEMORY_ALONE % {"all": LIMITS.memory * 2})
    return {
        "memory": Guarantee.BEST_EFFORT
        if alone.status in ("failed", "memory")
        else Guarantee.ABSENT
    }


async def _forks(run: ProgramRunner) -> dict[str, Guarantee]:
    result = await _python(run, FORKS)
    born = int(result.stdout) if result.stdout.strip().isdigit() else 100
    return {"forks": Guarantee.ENFORCED if born <= LIMITS.processes else Guarantee.ABSENT}


async def _output(run: ProgramRunner) -> dict[str, Guarantee]:
    result = await _python(run, OUTPUT)
    kept = result.status == "output" and len(result.stdout) == LIMITS.output
    return {"output": Guarantee.ENFORCED if kept else Guarantee.ABSENT}


async def _time(run: ProgramRunner) -> dict[str, Guarantee]:
    """Measure whether programs end in time. On a loaded machine a kill may be late once; the axis
    is best effort only if every one is late.
    """
    for seconds in (0.2, 0.3, 0.5, 1.0, 1.0):
        result = await _python(run, TIME, seconds=seconds)
        if result.status == "timeout" and result.usage.seconds <= seconds + 0.25:
            return {"time": Guarantee.ENFORCED}
    return {"time": Guarantee.BEST_EFFORT if result.status == "timeout" else Guarantee.ABSENT}
