"""Starts one program without namespaces; runs in a fork of the launcher, which imports nothing of
the package.

This process stays outside of the program's confinement. It adopts the program's orphans, and when
the program ends it kills the rest of them before it reports the exit status.

Descriptors 0 to 2 are the program's; 3 takes reports, a line of JSON each: ``{"child-pid": N}`` at
the start, ``{"exit-code": N, "user": N}`` at the end of a program that ran; 4 has the order, as
JSON; 5 a seccomp filter.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import time
import warnings  # noqa: F401 - `os.execvpe` imports it where this process may no longer read it (Python 3.13)
from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
STATUS, ORDER, SECCOMP = 3, 4, 5
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, with these numbers on all architectures."""
KILL_SECONDS = 1.5

libc = ctypes.CDLL(None, use_errno=True)


def checked(value: int, what: str) -> int:
    """Return *value*, which is no error.

    Raises:
        OSError: it is -1.
    """
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return value


def prctl(option: int, *arguments: int) -> None:
    """Call prctl(2)."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    checked(libc.prctl(option, *padded), f"prctl({option})")


def restrict(rules: list[tuple[str, int]], *, files: int, network: int, scopes: int) -> None:
    """Limit this process with Landlock. What is in the masks is refused, except the *rules*: paths
    and rights.

    Raises:
        OSError: the kernel lacks it.
    """
    sizes = 24 if scopes else 16 if network else 8
    attributes = struct.pack("<QQQ", files, network, scopes)[:sizes]
    ruleset = checked(
        libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(sizes), 0),
        "landlock_create_ruleset",
    )
    for path, rights in rules:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("<Qi", rights, place)
        checked(libc.syscall(ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(place)
    checked(libc.syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter, an array of ``struct sock_filter``."""
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    checked(libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), head, 0, 0), "seccomp")


def become(user: int) -> None:
    """Give up root for *user* and its group, and all capabilities."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # the kernel has no more
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def program(order: dict[str, Any], seccomp: bytes, error: int) -> None:
    """Do the work of the child: confine itself and become the program. Does not return unless the
    program cannot start.

    The order matters. What needs root or open files comes first, `become` after the limits,
    Landlock and seccomp last, as they refuse the steps before them.
    """
    os.setsid()
    for entrance in order["groups"]:
        with open(entrance, "w") as file:
            file.write("0")  # this process
    # Python ignores the first two, and this program catches the third.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for name, value in order["limits"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard_limit = resource.getrlimit(kind)[1]  # which in some containers not even root may raise
        limit = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
        resource.setrlimit(kind, (limit, limit))
    if order["user"] is not None:
        become(order["user"])
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # only now: `become` would have cleared it
    os.chdir(order["home"])
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if order["landlock"]:
        restrict(**order["landlock"])
    os.set_inheritable(error, False)
    # All files but the standard ones and *error*, the pipe that tells why exec failed.
    os.closerange(3, error)
    os.closerange(error + 1, 1 << 16)
    if seccomp:
        filter_calls(seccomp)
    os.execvpe(order["argv"][0], order["argv"], order["environment"])


class Family:
    """The processes of the program: all that this process adopted."""

    def __init__(self, user: int | None, *, scoped: bool) -> None:
        self.user, self.scoped = user, scoped

    def kill(self) -> None:
        """Send SIGKILL to all of them. One call, between two forks of theirs, if they have a user
        or a domain of their own.

        Raises:
            OSError: the domain does not hold, so that the call would reach others.
        """
        if self.user is not None:
            if (killer := os.fork()) == 0:
                try:
                    become(self.user)
                    os.kill(-1, signal.SIGKILL)
                finally:
                    os._exit(0)
            os.waitpid(killer, 0)
        elif self.scoped:
            try:
                os.kill(os.getppid(), 0)
            except PermissionError:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
                    os.kill(-1, signal.SIGKILL)
            else:
                raise OSError("the Landlock domain does not hold")
        else:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for pid in children.read().split():
                    os.kill(int(pid), signal.SIGKILL)

    def end(self) -> None:
        """End all of them by SIGKILL and wait until none is left. Those of another parent that was
        killed are adopted, and killed next.
        """
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            self.kill()
            time.sleep(0.0005)


class TrainerEnded(BaseException):
    """The trainer ended."""


def stop(*_: object) -> None:
    raise TrainerEnded


def main() -> None:
    """Start the program, wait for it, end its family, report."""
    order, seccomp = json.loads(read_all(ORDER)), read_all(SECCOMP)
    trainer = os.getppid()
    signal.signal(signal.SIGTERM, stop)
    family = Family(order["user"], scoped=bool(order["landlock"] and order["landlock"]["scopes"]))
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != trainer:
            return
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_DUMPABLE, 0)  # the program may have the same user
        # the program's domain is a child of this one: it cannot signal here
        if family.scoped and family.user is None:
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            restrict([], files=0, network=0, scopes=order["landlock"]["scopes"])
        if family.user is not None:
            family.kill()  # what a run left whose confiner was killed
        child, failed = start(order, seccomp)
        os.write(STATUS, b'{"child-pid": %d}\n' % child)
        code, user = wait(child)
        family.end()
        if not os.read(failed, 1):
            os.write(STATUS, b'{"exit-code": %d, "user": %d}\n' % (code, user))
    except TrainerEnded:
        family.end()


def start(order: dict[str, Any], seccomp: bytes) -> tuple[int, int]:
    """Return the child's process id, and a descriptor that has a byte if the program could not
    start.
    """
    failed, error = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            program(order, seccomp, error)
        except Exception as e:  # noqa: BLE001 - such as an import that the confinement refuses
            os.write(2, f"{order['argv'][0]}: {e}\n".encode(errors="replace"))
        finally:
            os.write(error, b"x")
            os._exit(127)
    os.close(error)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # so that the program's end of a stream is its only end
        os.dup2(null, stream)
    return child, failed


def wait(child: int) -> tuple[int, int]:
    """Return the exit status of *child* and its real user; reaps its orphans until then."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == child:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else 128 - code), ended.si_uid


def read_all(descriptor: int) -> bytes:
    """Return the content of a file from its start."""
    with open(descriptor, "rb") as file:
        return file.read()
