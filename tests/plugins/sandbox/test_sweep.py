# ruff: noqa: E501 - programs as text
"""Ending what a command of a session leaves: each race between a listing of processes and their forks, made to happen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quintain_sandbox import Bubblewrap, ProgramLimits, SandboxSession
from quintain_sandbox.session import SOURCE as SESSION_SOURCE

from .service import started

LIMITS = ProgramLimits(seconds=30.0, cpu_seconds=20.0, processes=16)
SOURCE = SESSION_SOURCE.decode().removesuffix("\nmain()\n")
SETTING = r"""
import ctypes, functools, os, select, signal, subprocess, sys, threading, time
import supervisor
from supervisor import Processes, kill
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
def until(pid, states):
    while state(pid) not in states:
        time.sleep(0.001)
def started(work):
    # A process that has started to wait for a signal; what it does then.
    def run(*_):
        work()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGUSR1, run)
        os.write(write, b"x")
        while True:
            signal.pause()
    os.read(read, 1)
    return pid
def stay():
    if os.fork() == 0:
        time.sleep(600)
processes = Processes()
processes.alone = os.getpid() == 1
"""
END = r"""
processes.reap()
others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid(), keep}
print(len([pid for pid in others if state(pid) != "Z"]), state(keep) if keep else "-", len(processes.ended))
"""
LATE_STOP = r"""
# The interpreter is told to stop, and before it stops a thread of it finishes a fork.
def work():
    time.sleep(0.3)
    forked = threading.Event()
    threading.Thread(target=lambda: (stay(), forked.set(), time.sleep(600)), daemon=True).start()
    forked.wait()
    os.kill(os.getpid(), signal.SIGSTOP)
    os.write(goes_on, b"x")
back, goes_on = os.pipe()
keep = started(work)
told = []
def late(pid, number):
    if number != signal.SIGSTOP:
        kill(pid, number)
    elif not told:
        told.append(pid)
        kill(pid, signal.SIGUSR1)
supervisor.kill = late
processes.sweep(keep)
while not select.select([back], [], [], 0.01)[0]:
    kill(keep, signal.SIGCONT)
until(keep, "S")
"""
HOP = r"""
# A process is listed, forks, and has exited when it is looked at: all that was listed is dead.
def work():
    stay()
    os._exit(0)
keep, first = None, started(work)
looked = []
look = supervisor.is_dead
def late(pid):
    if not looked:
        looked.append(pid)
        os.kill(first, signal.SIGUSR1)
        until(first, "Z")
    return look(pid)
supervisor.is_dead = late
processes.sweep()
"""
FIRST_THREAD = r"""
# The first thread of a process has exited and another one forks.
keep = None
code = '''
import ctypes, os, threading, time
def work():
    time.sleep(0.2)
    while True:
        if os.fork() == 0: time.sleep(600)
        time.sleep(0.01)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
'''
process = subprocess.Popen([sys.executable, "-I", "-c", code])
until(process.pid, "Z")
processes.sweep()
assert process.pid in processes.ended, "not reaped"
processes.ended = {}
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    yield from started(slots=2)


@pytest.mark.parametrize(
    "start", [[], ["sh", "-c", '"$@"; :', "sh"]], ids=["as the first process", "below another"]
)
@pytest.mark.parametrize(
    "race, left",
    [(LATE_STOP, "0 S 0"), (HOP, "0 - 2"), (FIRST_THREAD, "0 - ")],
    ids=["stop", "fork and exit", "first thread"],
)
def test_a_sweep_leaves_nothing(
    sandbox: Bubblewrap, start: list[str], race: str, left: str
) -> None:
    """A fork during the stop or the listing, or behind a first thread that has exited, is found and ended."""
    files = {"supervisor.py": SOURCE.encode(), "main.py": (SETTING + race + END).encode()}
    argv = [*start, "python3", "main.py"]
    result = asyncio.run(sandbox.run(files, argv, limits=LIMITS))
    assert result.status == "ok", result.stderr[-2000:]
    assert result.stdout.decode().startswith(left)


def test_a_command_whose_first_thread_exits_ends_like_others(sandbox: Bubblewrap) -> None:
    """Its other threads run to the limit, and the session continues."""
    code = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nctypes.CDLL(None).pthread_exit(None)"

    async def steps(session: SandboxSession) -> None:
        assert (await session.run(["python3", "-c", code], seconds=0.5)).status == "timeout"
        assert (await session.run(["echo", "hi"])).stdout == b"hi\n"

    async def work() -> None:
        async with sandbox.session(limits=LIMITS) as session:
            await steps(session)

    asyncio.run(work())


def test_a_bomb_in_the_interpreter_leaves_room_for_the_next_one(sandbox: Bubblewrap) -> None:
    """No unreaped process of the interpreter that ended counts against the limit on processes of the next."""
    bomb = "import os, threading\ndef f():\n    while True:\n        try:\n            if os.fork() == 0: os.execvp('sleep', ['sleep', '9'])\n        except OSError: pass\nthreading.Thread(target=f, daemon=True).start()"

    async def work() -> None:
        async with sandbox.session(limits=LIMITS) as session:
            python = session.python()
            for _ in range(10):
                await python.execute(bomb, seconds=5)
                await python.execute("while True: pass", seconds=0.05)
                assert (await python.execute("1 + 1")).stdout == "2\n"

    asyncio.run(work())
