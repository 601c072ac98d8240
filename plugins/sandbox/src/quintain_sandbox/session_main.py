"""The supervisor of a session, inside the box: requests and answers are JSON lines on its standard
streams.

It starts one command after the other, keeps their limits on time and output, and kills what each
leaves behind. It has no rights that the commands lack, but they cannot reach its descriptors: it is
not dumpable, so that its entries in /proc are not theirs, and where the box has its own process
numbers it is the first, which they cannot kill.

It runs alone: standard library only, Python 3.9 or later.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from typing import IO, Any

SET_DUMPABLE, SET_CHILD_SUBREAPER = 4, 36
CHUNK = 1 << 16
READY = b"ready\n"
PATIENCE = 5.0
"""Seconds that a sweep may take before it also kills the interpreter."""
INTERPRETER = r"""
import ast, json, linecache, os, sys, traceback
requests, answers = int(sys.argv[1]), int(sys.argv[2])
os.set_inheritable(requests, False)
os.set_inheritable(answers, False)
def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(requests, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data
def execute(code, name, names):
    body = compile(code, name, "exec", ast.PyCF_ONLY_AST).body
    shown = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), names)
    if shown is not None:
        value = eval(compile(ast.Expression(shown.value), name, "eval"), names)
        if value is not None:
            print(repr(value))
def main():
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    cell = 0
    while True:
        code = take(int.from_bytes(take(8), "big")).decode("utf-8", "replace")
        cell += 1
        name = f"<cell {cell}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        error = None
        try:
            execute(code, name, names)
        except BaseException as e:
            trace = e.__traceback__.tb_next
            trace = trace.tb_next if trace is not None else None
            try:
                error = "".join(traceback.format_exception(type(e), e, trace))
            except BaseException:
                error = f"{type(e).__name__} (its text cannot be shown)"
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                pass
        answer = memoryview(json.dumps(error).encode() + b"\n")
        while answer:
            answer = answer[os.write(answers, answer):]
main()
"""
START = f"import os, sys\nexec(os.read(int(sys.argv[1]), {len(INTERPRETER)}))"
"""Runs what the pipe of requests has first, so that listings of processes do not show it."""


class Processes:
    """All processes below this one."""

    def __init__(self) -> None:
        self.ended: dict[int, tuple[int, Any]] = {}  # process id to (status, usage)
        self.alone = os.getpid() == 1  # all others of these process numbers are below it

    def reap(self) -> None:
        """Collect those that ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.ended[pid] = os.waitstatus_to_exitcode(status), usage

    def living(self, keep: int | None) -> set[int]:
        """Return those that live, but for *keep*. One that is born or exits meanwhile may hide
        others from it.
        """
        if self.alone:
            pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1}
        else:
            pids = set()
            new = {os.getpid()}
            while new:
                new = {child for pid in new for child in children(pid)} - pids
                pids |= new
        return {pid for pid in pids if pid != keep and not is_dead(pid)}

    def newest(self) -> bytes:
        """Return the last process number that was given; where others take numbers, too, nothing is
        known of it.
        """
        if not self.alone:
            return b""
        with open("/proc/loadavg", "rb") as file:
            return file.read().split()[-1]

    def sweep(self, keep: int | None = None) -> None:
        """End all but *keep*, which does not run meanwhile, by SIGKILL; *keep*, too, if that does
        not succeed in time.

        A listing is not one moment: a process may fork after it was passed, and have exited when it
        is looked at. And a stopped process may still finish a fork. So nothing is left only if two
        listings in a row find nobody, *keep* has really stopped, and no number was given meanwhile.
        """
        deadline = time.monotonic() + PATIENCE
        quiet: bytes | None = None
        while True:
            if keep is not None and time.monotonic() > deadline:
                kill(keep, signal.SIGKILL)
                keep = None
            if keep is not None:
                kill(keep, signal.SIGSTOP)  # again, for another process may have continued it
            self.reap()
            newest = self.newest()
            others = self.living(keep)
            if others or not (keep is None or is_stopped(keep)):
                quiet = None
                for pid in others:
                    kill(pid, signal.SIGKILL)
                time.sleep(0.001)
            elif quiet == newest:
                break
            else:
                quiet = newest
        self.reap()
        if keep is not None:
            kill(keep, signal.SIGCONT)


def children(pid: int) -> set[int]:
    """Return the children of all threads of a process."""
    processes: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                processes.update(map(int, file.read().split()))
    return processes


def state(path: str) -> tuple[bytes, int]:
    """Return the state of a process or thread below /proc, and the number of threads of the
    process; dead if there is none.
    """
    try:
        with open(f"/proc/{path}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b"X", 0
    return fields[0], int(fields[17])


def is_dead(pid: int) -> bool:
    """Return whether a process has ended; one whose first thread has ended may go on."""
    now, threads = state(str(pid))
    return now in {b"Z", b"X"} and threads <= 1


def is_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(state(f"{pid}/task/{thread}")[0] in {b"T", b"t", b"Z", b"X"} for thread in threads)


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Streams:
    """What a process writes, up to *room* bytes of each stream, and what it is given."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.kept: dict[str, bytearray] = {}
        self.truncated: set[str] = set()
        self.selector = selectors.DefaultSelector()
        self.given = memoryview(b"")
        self.sink: IO[bytes] | None = None

    def give(self, sink: IO[bytes], data: bytes) -> None:
        os.set_blocking(sink.fileno(), False)
        self.given, self.sink = memoryview(data), sink
        self.selector.register(sink, selectors.EVENT_WRITE)

    def take(self, name: str, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.kept[name] = bytearray()
        self.selector.register(descriptor, selectors.EVENT_READ, name)

    def watch(self, descriptor: int) -> None:
        self.selector.register(descriptor, selectors.EVENT_READ)

    def until(self, deadline: float, stop: Callable[[set[int]], bool]) -> bool:
        """Move data until *stop* says so of the descriptors that are ready; False if the time is up
        before.
        """
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            ready = self.selector.select(left)
            for key, _ in ready:
                if key.fileobj is self.sink:
                    self.write()
                elif key.data is not None:
                    self.read(key.fd, key.data)
            if stop({key.fd for key, _ in ready}):
                return True

    def drain(self) -> None:
        """Take what is in the pipes."""
        for key in list(self.selector.get_map().values()):
            while key.data is not None and self.read(key.fd, key.data):
                pass

    def write(self) -> None:
        assert self.sink is not None
        try:
            self.given = self.given[
                os.write(self.sink.fileno(), self.given[:CHUNK]) if self.given else 0 :
            ]
        except BlockingIOError:
            return
        except OSError:  # it closed its standard input
            self.given = memoryview(b"")
        if not self.given:
            self.selector.unregister(self.sink)
            self.sink.close()
            self.sink = None

    def read(self, descriptor: int, name: str) -> bool:
        """Take one piece; whether there was one."""
        try:
            piece = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        if not piece:
            self.selector.unregister(descriptor)
            return False
        room = self.room - len(self.kept[name])
        self.kept[name] += piece[:room]
        if len(piece) > room:
            self.truncated.add(name)
        return True


class Supervisor:
    """The requests, by name."""

    def __init__(self) -> None:
        self.processes = Processes()
        # Process, its handle, and descriptors: output, requests, answers.
        self.python: tuple[subprocess.Popen[bytes], int, int, int, int] | None = None

    def run(self, argv: list[str], stdin: str, seconds: float, output: int) -> dict[str, Any]:
        """Run a command to its end."""
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as e:
            return ended(
                "failed",
                127 if isinstance(e, FileNotFoundError) else 126,
                b"",
                f"{e}\n".encode(),
                began,
            )
        handle = os.pidfd_open(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        streams = Streams(output)
        streams.take("stdout", process.stdout.fileno())
        streams.take("stderr", process.stderr.fileno())
        streams.watch(handle)
        streams.give(process.stdin, base64.b64decode(stdin))
        in_time = streams.until(
            began + seconds, lambda ready: handle in ready or bool(streams.truncated)
        )
        if handle_ready(handle):
            streams.drain()
        self.processes.sweep(None if self.python is None else self.python[0].pid)
        streams.drain()
        streams.selector.close()
        os.close(handle)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        status, usage = self.processes.ended.pop(process.pid)
        self.processes.ended.clear()
        process.returncode = status
        limit = "output" if streams.truncated else None if in_time else "timeout"
        status = status if status >= 0 else 128 - status
        return ended(
            limit or ("failed" if status else "ok"),
            None if limit else status,
            streams.kept["stdout"],
            streams.kept["stderr"],
            began,
            usage,
            sorted(streams.truncated),
        )

    def write(self, files: dict[str, str]) -> dict[str, Any]:
        """Write files below the working directory."""
        for name, data in files.items():
            folder = os.path.dirname(name)
            if folder:
                os.makedirs(folder, exist_ok=True)
            # A program may have put a pipe there, for which an open would wait.
            descriptor = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
            )
            with os.fdopen(descriptor, "wb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(f"{name} is not a regular file")
                file.truncate()
                file.write(base64.b64decode(data))
        return {}

    def read(self, path: str, limit: int) -> dict[str, Any]:
        """Return the content of a regular file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("not a regular file")
            data = file.read(limit + 1)
        if len(data) > limit:
            raise OSError(f"more than {limit} bytes")
        return {"data": base64.b64encode(data).decode()}

    def execute(self, code: str, seconds: float, output: int) -> dict[str, Any]:
        """Execute code in the interpreter, which starts if need be."""
        began = time.monotonic()
        if self.python is None:
            self.python = self.start_python()
        process, handle, output_pipe, requests, answers = self.python
        streams = Streams(output)
        streams.take("stdout", output_pipe)
        streams.watch(handle)
        answer = Streams(4 * output + 1024)
        answer.take("answer", answers)
        streams.watch(answers)
        data = base64.b64decode(code)
        streams.give(
            os.fdopen(os.dup(requests), "wb", buffering=0), len(data).to_bytes(8, "big") + data
        )

        def answered(ready: set[int]) -> bool:
            answer.drain()
            closed = not answer.selector.get_map()
            return (
                handle in ready
                or closed
                or bool(answer.truncated)
                or answer.kept["answer"].endswith(b"\n")
            )

        in_time = streams.until(began + seconds, answered)
        self.processes.sweep(process.pid)
        streams.drain()
        streams.selector.close()
        answer.selector.close()
        if streams.sink is not None:
            streams.sink.close()
        status, error = "ok" if in_time else "timeout", None
        try:
            error = json.loads(answer.kept["answer"])
        except ValueError:
            status = "exit" if in_time else "timeout"
        if status == "ok" and error is not None:
            status = "error"
        if status in ("exit", "timeout"):
            self.end_python()
        error = error[:output] if isinstance(error, str) else ""
        return {
            "status": status,
            "stdout": base64.b64encode(streams.kept["stdout"]).decode(),
            "error": error,
            "truncated": bool(streams.truncated),
            "seconds": time.monotonic() - began,
        }

    def start_python(self) -> tuple[subprocess.Popen[bytes], int, int, int, int]:
        requests, theirs = os.pipe()[::-1]
        answers, mine = os.pipe()
        output_pipe, out = os.pipe()
        try:
            process = subprocess.Popen(
                ["python3", "-I", "-c", START, str(theirs), str(mine)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(theirs, mine),
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (requests, answers, output_pipe):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (theirs, mine, out):
                os.close(descriptor)
        os.write(requests, INTERPRETER.encode())
        return process, os.pidfd_open(process.pid), output_pipe, requests, answers

    def end_python(self) -> None:
        assert self.python is not None
        process, *descriptors = self.python
        kill(process.pid, signal.SIGKILL)
        self.python = None
        self.processes.sweep()
        process.returncode = self.processes.ended.pop(process.pid, (0, None))[0]
        for descriptor in descriptors:
            os.close(descriptor)


def handle_ready(handle: int) -> bool:
    """Return whether the process of a handle has ended."""
    try:
        signal.pidfd_send_signal(handle, 0)
    except ProcessLookupError:
        return True
    return False


def ended(
    status: str,
    code: int | None,
    stdout: bytes | bytearray,
    stderr: bytes | bytearray,
    began: float,
    usage: Any = None,
    truncated: Any = (),
) -> dict[str, Any]:
    return {
        "status": status,
        "exit": code,
        "stdout": base64.b64encode(stdout).decode(),
        "stderr": base64.b64encode(stderr).decode(),
        "seconds": time.monotonic() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime if usage else 0.0,
        "memory": usage.ru_maxrss * 1024 if usage else 0,
        "truncated": list(truncated),
    }


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the first process of a box ignores
    libc = ctypes.CDLL(None)
    libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    supervisor = Supervisor()
    answers.write(READY)
    answers.flush()
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(supervisor, request.pop("do"))(**request)
        except OSError as e:
            answer = {"refused": f"{e.strerror or e}"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


main()
