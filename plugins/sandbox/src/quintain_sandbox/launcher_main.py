"""A small process that starts programs for the trainer: ``python -I -S launcher_main.py SOCKET
PARENT``.

Each request is a message with descriptors: of a file with the request, of the pipe for the end, of
what the program inherits. The answer is a descriptor of the process. A fork of this process is
cheap, whatever the size of the trainer, and between fork and exec it joins control groups, sets
limits and changes the user, for which the trainer would need one more program each. When the
trainer ends or the socket closes, it exits, and the kernel kills what it started.

It runs alone: standard library only, nothing of Quintain.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
from types import ModuleType
from typing import Any

MORE, LAST, KILL = b"+", b".", b"k"
"""Messages: descriptors of a request, of which further ones follow or not (one carries at most
253); a kill.
"""
SET_CHILD_SUBREAPER = 36


def main(control: int, parent: int) -> None:
    sock = socket.socket(fileno=control)
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, awake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(awake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    for descriptor in (control, wake, parent):
        os.set_inheritable(descriptor, False)
        poll.register(descriptor, select.POLLIN)
    confiner()
    gc.freeze()
    gc.disable()
    ends: dict[int, int] = {}  # process id to the pipe for its end
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if parent in ready:
            return
        if wake in ready:
            os.read(wake, 4096)
            reap(ends)
        if control in ready:
            kind, descriptors = receive(sock)
            if kind.startswith(KILL):
                # Of a program whose handle did not arrive; in the table, so not reaped, so still
                # its number.
                if int(kind[1:]) in ends:
                    os.kill(int(kind[1:]), signal.SIGKILL)
                continue
            if not descriptors:
                return
            process, end = start(descriptors)
            handle = os.pidfd_open(process)
            ends[process] = end
            socket.send_fds(sock, [str(process).encode()], [handle])
            os.close(handle)


@functools.cache
def confiner() -> ModuleType:
    """Return the module `confine` beside this file, loaded before the first fork."""
    spec = importlib.util.spec_from_file_location(
        "confine", os.path.join(os.path.dirname(__file__), "confine.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the last message of a request, and the descriptors of all; none at the end."""
    descriptors: list[int] = []
    while True:
        kind, new = receive_message(sock)
        descriptors += new
        if kind != MORE:
            return kind, descriptors


def receive_message(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message with its descriptors, closed on exec; `socket.recv_fds` ignores the flag
    for that (Python 3.11).
    """
    descriptors = array.array("i")
    size = socket.CMSG_LEN(253 * descriptors.itemsize)
    message, ancillary, _, _ = sock.recvmsg(32, size, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, list(descriptors)


def start(descriptors: list[int]) -> tuple[int, int]:
    """Start a process by fork and exec; return its id and the pipe for its end."""
    request, end, *inherited = descriptors
    process = os.fork()
    if process == 0:
        become(request, inherited)
    for descriptor in (request, *inherited):
        os.close(descriptor)
    return process, end


def become(request: int, inherited: list[int]) -> None:
    """Turn into the program. What fails is written to its standard error."""
    status = 127
    try:
        os.dup2(inherited[2], 2)
        with open(request) as file:
            wanted: dict[str, Any] = json.load(file)
        os.setsid()
        os.umask(0o022)
        for tasks in wanted["groups"]:
            # A process that moves its only thread does not wait for a grace period of the kernel;
            # for another process, or for a thread group, it does, which takes 1 to 40 ms.
            with open(tasks, "w") as file:
                file.write("0")
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python ignores them, which exec would pass on
        # Above all targets first, so that none overwrites another.
        above = [
            fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, len(inherited))
            for descriptor in inherited
        ]
        for target, descriptor in enumerate(above):
            os.dup2(descriptor, target)
        for kind, value in wanted["limits"].items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (value, value))
        if wanted["user"] is not None:
            os.setgroups([])
            os.setresgid(*[wanted["user"]] * 3)
            os.setresuid(*[wanted["user"]] * 3)
        os.chdir("/")
        if wanted["argv"]:
            os.execve(wanted["argv"][0], wanted["argv"], {})
        os.closerange(len(inherited), 1 << 16)  # such as the ends of other programs
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        confiner().main()
        status = 0
    except (OSError, ValueError) as e:
        status = 126
        os.write(2, f"the launcher failed: {e}".encode())
    finally:
        os._exit(status)


def reap(ends: dict[int, int]) -> None:
    """Report the programs that ended, and end what killed ones left."""
    killed = False
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        if child is None:
            break
        _, status, usage = os.wait4(child.si_pid, 0)
        end = ends.pop(child.si_pid, None)
        if end is None:
            continue  # an orphan
        killed |= os.WIFSIGNALED(status)
        report = {
            "status": os.waitstatus_to_exitcode(status),
            "user": child.si_uid,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "memory": usage.ru_maxrss * 1024,
        }
        with contextlib.suppress(BrokenPipeError):  # the trainer no longer waits for it
            os.write(end, json.dumps(report).encode())
        os.close(end)
    if killed:
        # Where bubblewrap was killed before its child asked to be killed with it, the child is ours
        # now.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                orphans = {int(word) for word in file.read().split()} - ends.keys()
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
