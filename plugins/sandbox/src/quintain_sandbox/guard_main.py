"""Runs a program and ends with it: ``python -I -S guard_main.py PARENT GRACE COMMAND...``.

The program inherits this process's standard streams. When the program ends, what it left running is
killed, and this process exits with its status. When the trainer (process PARENT) ends, however it
ends, the program and all its descendants are killed. SIGTERM is passed on to the program, which
gets GRACE seconds until SIGKILL.

It runs alone: standard library only, nothing of Quintain.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

DESCENDANTS_SECONDS = 2.0
"""How long the descendants may take to end after SIGKILL."""
PERIOD = 0.5
"""Seconds between looks at the parent where the system has no pidfd."""
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36


def main(parent: int, grace: float, argv: list[str]) -> int:
    watch = select.poll()
    handle = os.pidfd_open(parent) if hasattr(os, "pidfd_open") else -1
    if os.getppid() != parent:  # it ended before the handle was open
        return 1
    wake, awake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
    signal.set_wakeup_fd(awake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    terminated: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(time.monotonic()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(SET_CHILD_SUBREAPER, 1)
    program = start(argv)
    for descriptor in (0, 1):  # else the program's pipes would stay open in this process
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    for descriptor in (wake, handle):
        if descriptor >= 0:
            watch.register(descriptor, select.POLLIN)
    passed_on = False
    while True:
        if terminated and not passed_on:
            passed_on = True
            send(program, signal.SIGTERM)
        if terminated and time.monotonic() - terminated[0] >= grace:
            send(program, signal.SIGKILL)
        pause = 0.1 if terminated else PERIOD if handle < 0 else None
        ready = {
            descriptor for descriptor, _ in watch.poll(None if pause is None else pause * 1000)
        }
        if wake in ready:
            os.read(wake, 4096)
        if handle in ready or os.getppid() != parent:
            send(program, signal.SIGKILL)
            kill_descendants(program)
            return 1
        status = ended(program)
        if status is not None:
            kill_descendants(program)
            return status


def prctl(option: int, value: int) -> None:
    """Call prctl(2); without effect where the system is no Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def start(argv: list[str]) -> int:
    """Start *argv* by fork and exec in a session of its own; return its process id."""
    program = os.fork()
    if program:
        return program
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(argv[0], argv)
    except OSError as e:
        os.write(2, f"cannot start {argv[0]!r}: {e.strerror}\n".encode())
    finally:
        os._exit(127)


def ended(program: int) -> int | None:
    """Return the exit status of the program (128 + n after signal n), ``None`` while it runs;
    orphans are reaped as well.
    """
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            process, code = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process == program:
                exit_code = os.waitstatus_to_exitcode(code)
                status = exit_code if exit_code >= 0 else 128 - exit_code
    return status


def kill_descendants(program: int) -> None:
    """Send SIGKILL to all that the program left; this process, the subreaper, is their ancestor."""
    with contextlib.suppress(OSError):
        os.killpg(program, signal.SIGKILL)
    deadline = time.monotonic() + DESCENDANTS_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for process in left:
            send(process, signal.SIGKILL)
        ended(program)
        time.sleep(0.002)


def descendants(ancestor: int) -> list[int]:
    """Return the process ids below *ancestor*, zombies too."""
    parents = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    processes: list[int] = []
    level = {ancestor}
    while level := {process for process, parent in parents.items() if parent in level}:
        processes += level
    return processes


def send(process: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
