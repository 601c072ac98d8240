"""Runs one program in a sandbox of another machine: ``python3 -I -c SOURCE JOB RESULT``.

It is root there, and the program is not: so the program can neither end it, nor change what it
reports. It runs alone: standard library only, of any Python from 3.8.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NO_NEW_PRIVILEGES, SUBREAPER = 38, 36
END_SECONDS = 5.0
"""How long the processes of the program may take to end after SIGKILL."""
GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")
"""Where the control group of a sandbox is in it, of either version."""
NO_LIMIT = 1 << 60


def main(job: str, result: str) -> None:
    """Take the program out of the file *job* and write what became of it to *result*."""
    with open(job, "rb") as file:
        header = json.loads(file.readline())
        contents = [file.read(size) for size in header["sizes"]]
    if os.getuid() != 0:
        report, streams = {"refused": f"user {os.getuid()}"}, [b"", b""]
    else:
        os.unlink(job)
        report, streams = run(header, contents)
    head = json.dumps({**report, "sizes": [len(s) for s in streams]}).encode()
    with open(f"{result}.part", "wb") as file:
        file.write(b"\n".join((head, b"".join(streams))))
    os.rename(f"{result}.part", result)


def run(header: dict[str, Any], contents: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Run the program; the report, and its standard output and error."""
    user = header["user"]
    folder = tempfile.mkdtemp(prefix="box-", dir="/tmp")
    stdin, *files = contents
    for name, content in zip(header["names"], files):  # noqa: B905 - Python 3.10
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    for place, _, names in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in names)):
            os.chown(path, user, user)
    with tempfile.TemporaryFile(dir="/tmp") as given:
        given.write(stdin)
        given.seek(0)
        before = counted("memory.events", "memory.oom_control")
        program = InnerProgram(header, folder, given.fileno())
        report = program.wait(header["seconds"], header["output"])
    kill_all(user)
    kills = counted("memory.events", "memory.oom_control") - before
    peak = number("memory.peak", "memory.max_usage_in_bytes")
    report["out_of_memory"] = kills > 0
    report["memory"] = min(peak or report["memory"], NO_LIMIT)
    report["host_user"] = user if own_users() else None
    return report, program.streams


class InnerProgram:
    """The program, which runs as another user.

    Attributes:
        streams: what it wrote to standard output and error so far, one byte past the limit at most.
    """

    def __init__(self, header: dict[str, Any], folder: str, stdin: int) -> None:
        self.streams = [b"", b""]
        self._wake, awake = os.pipe()
        os.set_blocking(awake, False)
        signal.set_wakeup_fd(awake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        prctl(SUBREAPER, 1)
        pipes = [os.pipe() for _ in range(3)]
        self._began = time.monotonic()
        self._child = os.fork()
        if self._child == 0:
            become(header, folder, (stdin, pipes[0][1], pipes[1][1]), pipes[2][1])
        for _, theirs in pipes:
            os.close(theirs)
        self._reads = [ours for ours, _ in pipes]
        failure = os.read(self._reads.pop(), 1 << 12)  # ends where the program begins
        self._failure = failure.decode("utf-8", "replace")

    def wait(self, seconds: float, output: int) -> dict[str, Any]:
        """Wait for its end, for *seconds* or until a stream has more than *output* bytes."""
        if self._failure:
            os.waitpid(self._child, 0)
            return {"refused": self._failure, "memory": 0}
        deadline, late, status, used = self._began + seconds, False, None, None
        poll = select.poll()
        for descriptor in (*self._reads, self._wake):
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        while status is None:
            left = deadline - time.monotonic()
            late = left <= 0
            if late or max(map(len, self.streams)) > output:
                os.kill(self._child, signal.SIGKILL)
                _, status, used = os.wait4(self._child, 0)
                break
            for descriptor, _ in poll.poll(max(1, int(left * 1000 + 1))):
                self._read(descriptor, output, poll)
            pid, ended, usage = os.wait4(self._child, os.WNOHANG)
            if pid:
                status, used = ended, usage
        for descriptor in self._reads:  # what is in the pipes
            self._read(descriptor, output, None)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        assert used is not None
        return {
            "exit": code,
            "late": late,
            "seconds": time.monotonic() - self._began,
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "memory": used.ru_maxrss * 1024,
        }

    def _read(self, descriptor: int, output: int, poll: select.poll | None) -> None:
        """Take what is there, until the stream has one byte more than it may."""
        while True:
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return
            if descriptor == self._wake:
                return
            place = self._reads.index(descriptor)
            room = output + 1 - len(self.streams[place])
            self.streams[place] += data[:room]
            if not data or len(data) >= room:
                if poll is not None and not data:
                    poll.unregister(descriptor)
                return


def become(
    header: dict[str, Any], folder: str, streams: tuple[int, int, int], failure: int
) -> None:
    """Turn this process, a child, into the program. Does not return."""
    try:
        os.setsid()
        for place, descriptor in enumerate(streams):
            os.dup2(descriptor, place)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # before the process that reports
        limits = dict(header["limits"])
        if not memory_is_counted():
            limits["AS"] = header["memory"]
        for name, value in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        os.chdir(folder)
        os.setgroups([])
        os.setgid(header["user"])
        os.setuid(header["user"])
        prctl(NO_NEW_PRIVILEGES, 1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        variables = {**header["environment"], "HOME": folder}
        # Python's descriptors are closed by the call; that for a failure is one of them.
        os.execvpe(header["argv"][0], header["argv"], variables)
    except BaseException as e:  # noqa: BLE001 - told to the other side
        os.write(failure, f"{type(e).__name__}: {e}".encode())
    finally:
        os._exit(127)


def kill_all(user: int) -> None:
    """End all processes of *user*.

    Raises:
        RuntimeError: some are left.
    """
    deadline = time.monotonic() + END_SECONDS
    while True:
        killer = os.fork()
        if killer == 0:
            try:
                os.setgid(user)
                os.setuid(user)
                os.kill(-1, signal.SIGKILL)  # all that it may, besides itself
            finally:
                os._exit(0)
        os.waitpid(killer, 0)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if not any(runs_as(user, pid) for pid in os.listdir("/proc") if pid.isdigit()):
            return
        if time.monotonic() > deadline:
            raise RuntimeError("processes of the program are left")
        time.sleep(0.01)


def runs_as(user: int, pid: str) -> bool:
    """Return whether a process is one of *user* that has not ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields["Uid"].split()[0]) == user and fields["State"].split()[0] != "Z"


def text(*names: str) -> str:
    """Return the first of the files of the control group that can be read; empty if none can."""
    for name in names:
        for folder in GROUPS:
            try:
                with open(f"{folder}/{name}") as file:
                    return file.read()
            except OSError:
                continue
    return ""


def counted(*names: str) -> int:
    """Return how often the kernel ended a process of the sandbox for memory."""
    for line in text(*names).splitlines():
        word, _, count = line.partition(" ")
        if word == "oom_kill":
            return int(count)
    return 0


def number(*names: str) -> int:
    """Return the number in a file of the control group; 0 if there is none."""
    found = text(*names).strip()
    return int(found) if found.isdigit() else 0


def memory_is_counted() -> bool:
    """Return whether a control group bounds the memory of the sandbox."""
    return 0 < number("memory.max", "memory.limit_in_bytes") < NO_LIMIT


def own_users() -> bool:
    """Return whether users have the same numbers in the sandbox as on its machine."""
    try:
        with open("/proc/self/uid_map") as file:
            return file.read().split() == ["0", "0", "4294967295"]
    except OSError:
        return False


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where the kernel has it."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
